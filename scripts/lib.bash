# What the scripts in this folder share; to be sourced. shellcheck shell=bash
#
# Whatever is wrong on a machine is said in one line that tells what to do.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}/.."
root=$PWD
tools=${CARGO_TARGET_DIR:-$root/target}/tools

say() { printf 'sluice: %s\n' "$*"; }
die() {
    printf 'sluice: %s\n' "$*" >&2
    exit 1
}
have() { type -P "$1" >/dev/null; }

need_rust() {
    have cargo || PATH=$PATH:${HOME:-/root}/.cargo/bin
    have cargo || die "Rust is missing; install it with: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    local line wanted=0 found
    while read -r line; do
        if [[ $line =~ ^rust-version\ =\ \"1\.([0-9]+) ]]; then wanted=${BASH_REMATCH[1]}; fi
    done <Cargo.toml
    line=$(rustc --version 2>/dev/null) || die "rustc does not run; install a toolchain with: rustup default stable"
    if [[ $line =~ ^rustc\ 1\.([0-9]+) ]]; then
        found=${BASH_REMATCH[1]}
        ((found >= wanted)) || die "Rust 1.$wanted or later is needed and this is 1.$found; get it with: rustup update stable"
    fi
}

# Says whether $1 is a server the module can be loaded into, and sets `version` to what it is.
server_is_good() {
    local line
    version="no Redis or Valkey server"
    line=$("$1" --version 2>/dev/null) || return 1
    [[ $line =~ ^(Redis |Valkey )?[Ss]erver\ v=([0-9]+)\.([0-9]+) ]] || return 1
    local name=${BASH_REMATCH[1]:-Valkey } major=${BASH_REMATCH[2]}
    version="${name}$major.${BASH_REMATCH[3]}"
    if [[ $name == "Redis " ]]; then ((major >= 7)); else ((major >= 8)); fi
}

# Whether the server that server_is_good has just looked at is what it is called: redis-8.6 is a Redis 8.6, valkey-9 a Valkey 9 of
# any kind. Another name promises nothing.
is_what_it_is_called() {
    [[ $1 =~ ^(redis|valkey)-([0-9]+(\.[0-9]+)?)$ ]] || return 0
    local number=${BASH_REMATCH[2]}
    case ${BASH_REMATCH[1]} in
    redis) [[ $version. == "Redis $number."* ]] ;;
    valkey) [[ $version. == "Valkey $number."* ]] ;;
    esac
}

# Sets `server` and `cli`; fails if either is missing. An older server counts as missing, and `too_old` then names it.
find_server() {
    local candidate
    server='' cli=''
    if [[ -n ${SLUICE_SERVER:-} ]]; then
        server=$(type -P "$SLUICE_SERVER") || die "SLUICE_SERVER=$SLUICE_SERVER: no such program"
        server_is_good "$server" || die "SLUICE_SERVER=$SLUICE_SERVER is $version; Redis 7.0, Valkey 8.0 or later is needed"
        [[ $server == /* ]] || server=$PWD/$server
    else
        for candidate in redis-server valkey-server "$tools/redis-server"; do
            candidate=$(type -P "$candidate") || continue
            if server_is_good "$candidate"; then
                server=$candidate
                break
            fi
            too_old=$version
        done
    fi
    for candidate in "${SLUICE_CLI:-}" "${server%/*}/redis-cli" "${server%/*}/valkey-cli" redis-cli valkey-cli; do
        if cli=$(type -P "$candidate"); then break; fi
    done
    [[ -n $server && -n $cli ]]
}

# bindgen loads libclang and reads clang's own headers. Those of a clang in the PATH will do, wherever they are.
has_libclang() {
    local lib header
    [[ -n ${LIBCLANG_PATH:-} ]] && return
    for lib in /usr/lib/llvm*/lib /usr/lib/*-linux-* /usr/lib /usr/lib64 /usr/lib64/llvm*/lib* /usr/local/lib \
        /usr/local/llvm*/lib /opt/homebrew/opt/llvm*/lib /usr/local/opt/llvm*/lib \
        /Library/Developer/CommandLineTools/usr/lib /Applications/Xcode.app/Contents/Developer/Toolchains/*/usr/lib; do
        compgen -G "$lib/libclang.so*" >/dev/null || compgen -G "$lib/libclang-*.so*" >/dev/null ||
            compgen -G "$lib/libclang.dylib" >/dev/null || continue
        have clang && return
        for header in "$lib"/clang/*/include/stddef.h /usr/lib/llvm*/lib/clang/*/include/stddef.h \
            /usr/lib*/clang/*/include/stddef.h; do
            [[ -e $header ]] && return
        done
    done
    return 1
}

# Sets `missing` to what has to be installed, in words that package_names knows.
look_for_missing() {
    missing=() too_old=''
    have cc || missing+=(cc)
    has_libclang || missing+=(libclang)
    find_server || missing+=(server)
}

# The packages of a package manager for the words given.
package_names() {
    local manager=$1 word
    shift
    for word; do
        case $manager.$word in
        # redis-tools holds the server's program as well, as redis-check-rdb, and has no service that would start.
        apt-get.server) echo redis-tools ;;
        apt-get.cc) echo gcc libc6-dev ;;
        apt-get.libclang) echo libclang-dev ;;
        pacman.server) echo valkey ;;
        *.server) echo redis ;;
        apk.cc) echo gcc musl-dev ;;
        *.cc) echo gcc ;;
        brew.libclang) echo llvm ;;
        pacman.libclang) echo clang ;;
        apk.libclang) echo clang-dev clang-libclang ;;
        *.libclang) echo clang-devel ;;
        esac
    done
}

# The one line for somebody whose system we do not install on.
die_missing() {
    local names=() word by manager
    for word in "${missing[@]}"; do
        case $word in
        cc) names+=("a C compiler (cc)") ;;
        libclang) names+=("libclang") ;;
        server) names+=("redis-server and redis-cli (Redis 7.0, Valkey 8.0 or later${too_old:+; found $too_old})") ;;
        esac
    done
    local list
    printf -v list '%s, ' "${names[@]}"
    by="install it and try again"
    for manager in apt-get dnf zypper apk pacman brew; do
        have "$manager" || continue
        local packages
        packages=$(package_names "$manager" "${missing[@]}")
        case $manager in
        apk) by="install with: apk add" ;;
        pacman) by="install with: sudo pacman -S" ;;
        brew) by="install with: brew install" ;;
        *) by="install with: sudo $manager install" ;;
        esac
        by+=" ${packages//$'\n'/ }"
        break
    done
    die "missing: ${list%, }; $by"
}

# Installs what is missing, where that can be done without asking anybody; one line and the end where it cannot.
need_system() {
    look_for_missing
    if [[ " ${missing[*]-} " == *" server "* ]] && link_server; then look_for_missing; fi
    ((${#missing[@]})) || return 0
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo -n)
        if ! have sudo || ! sudo -n true 2>/dev/null; then die_missing; fi
    fi
    have apt-get || die_missing

    local packages log said
    read -r -d '' -a packages < <(package_names apt-get "${missing[@]}") || true
    mkdir -p "$tools"
    log=$tools/apt.log
    say "installing ${packages[*]} with apt-get"
    apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1; }
    : >"$log"
    # The lists of a fresh system are empty or old: a second try fetches them first.
    if ! apt install -y --no-install-recommends "${packages[@]}" &&
        ! { apt update && apt install -y --no-install-recommends "${packages[@]}"; }; then
        said=''
        while read -r line; do [[ $line == E:* ]] && said=$line; done <"$log"
        die "apt-get could not install ${packages[*]} (no network?)${said:+: ${said#E: }}; the whole story is in $log"
    fi
    link_server || true
    look_for_missing
    ((${#missing[@]} == 0)) || die_missing_still
}

# Debian's redis-tools has the server under another name; it goes by the name it is called.
link_server() {
    local program
    program=$(type -P redis-check-rdb) || return 1
    mkdir -p "$tools"
    ln -sf "$program" "$tools/redis-server"
    server_is_good "$tools/redis-server" && return
    rm -f "$tools/redis-server"
    return 1
}

die_missing_still() {
    [[ ${missing[*]} == server ]] || die "apt-get installed all it was asked for, and yet this is missing: ${missing[*]}"
    die "the server that apt-get has is too old${too_old:+ ($too_old)}; install Redis 7.0, Valkey 8.0 or later and say where: SLUICE_SERVER=path make …"
}

# Fetches the crates, so that a network that is down is told from a build that fails.
need_crates() {
    local said line host=''
    while read -r line; do [[ $line == host:* ]] && host=${line#host: }; done < <(rustc -vV)
    # shellcheck disable=SC2086 # flags are words
    said=$(cargo fetch --target "$host" ${CARGO_FLAGS:-} 2>&1) && return
    while read -r line; do [[ $line == error:* ]] && break; done <<<"$said"
    die "the crates could not be fetched (no network?): ${line#error: }"
}

# Gets the clients that the examples in README.md are for. The tests go without them and say so: nothing here ends a run.
get_clients() {
    local clients=${CARGO_TARGET_DIR:-$root/target}/clients
    local python=$clients/python/bin/python node=$clients/node
    # Python and pip of a virtual environment are links to the system's, which may have changed since.
    if have python3 && ! python3 -c 'import redis' 2>/dev/null && ! "$python" -c 'import redis' 2>/dev/null; then
        mkdir -p "$clients"
        say "installing redis-py into $clients/python"
        if ! { python3 -m venv --clear "$clients/python" &&
            "$python" -m pip install --quiet --disable-pip-version-check --timeout 15 --retries 1 'redis>=5'; } \
            >"$clients/python.log" 2>&1; then
            say "redis-py could not be installed (no network? no venv?): its examples are not run; see $clients/python.log"
        fi
    fi
    if have node && have npm && [[ ! -e $node/node_modules/redis || ! -e $node/node_modules/ioredis ]]; then
        mkdir -p "$node"
        say "installing node-redis and ioredis into $node"
        if ! { npm install --prefix "$node" --no-audit --no-fund --ignore-scripts \
            --fetch-retries=1 --fetch-timeout=15000 'redis@>=5' 'ioredis@>=5'; } >"$clients/node.log" 2>&1; then
            say "node-redis and ioredis could not be installed (no network?): its examples are not run; see $clients/node.log"
        fi
    fi
}

# Sets `shop_python` to a Python that has what examples/shop needs: the system's, or one of its own in target/.
find_shop_python() {
    local made=${CARGO_TARGET_DIR:-$root/target}/clients/shop/bin/python
    for shop_python in python3 "$made"; do
        "$shop_python" -c 'import aiohttp, pytest, redis' 2>/dev/null && return
    done
    return 1
}

# As get_clients, for examples/shop.
get_shop() {
    local clients=${CARGO_TARGET_DIR:-$root/target}/clients
    have python3 && ! find_shop_python || return 0
    mkdir -p "$clients"
    say "installing what examples/shop needs into $clients/shop"
    if ! { python3 -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")' &&
        python3 -m venv --clear "$clients/shop" &&
        "$clients/shop/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 15 --retries 1 \
            --requirement examples/shop/requirements.txt; } >"$clients/shop.log" 2>&1; then
        say "what examples/shop needs could not be installed (no network? no venv? Python before 3.10?): it is not run; see $clients/shop.log"
    fi
}

# Gets valgrind, which the bench counts instructions with, where it can; nothing but the bench needs it, and it says so itself.
get_valgrind() {
    local as_root=() log=$tools/valgrind.log
    have valgrind && return
    have apt-get || return 0
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo -n)
        if ! have sudo || ! sudo -n true 2>/dev/null; then return 0; fi
    fi
    mkdir -p "$tools"
    say "installing valgrind with apt-get"
    apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1; }
    : >"$log"
    if ! apt install -y --no-install-recommends valgrind &&
        ! { apt update && apt install -y --no-install-recommends valgrind; }; then
        say "valgrind could not be installed (no network?): bench-check is skipped; see $log"
    fi
}

# Sets what bench/ asks for, or `lacking` to what is missing.
need_bench() {
    need_rust
    need_system
    get_valgrind
    find_server
    export SLUICE_SERVER=$server SLUICE_MODULE=${CARGO_TARGET_DIR:-$root/target}/release/libsluice.so
    lacking=''
    have python3 || lacking="python3 is missing"
    if ! have valgrind || ! have vgdb; then lacking="valgrind is missing; install with: sudo apt-get install valgrind"; fi
    [[ -z $lacking ]]
}
