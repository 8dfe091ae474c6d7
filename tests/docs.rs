//! The documentation says what the table of commands, the server and redis-cli say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::arithmetic_side_effects, clippy::string_slice)]

mod pages;
mod rig;
#[path = "../src/spec.rs"]
mod spec;

use pages::{Step, blocks, files, read, root};
use rig::{Client, Server, Value, ValueExt, args};
use spec::{Arg, Command, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- from src/spec.rs, by `make docs` -->\n";
const END: &str = "<!-- until here -->\n";

/// Arguments that are durations. The table knows them as text, as the server does.
const DURATIONS: [&str; 4] = ["ttl", "window", "period", "timeout"];

fn page(command: &Command) -> PathBuf {
    Path::new("docs/commands").join(format!("{}.md", command.name.to_lowercase()))
}

fn syntax(command: &Command) -> String {
    let word = |arg: &Arg| match (&arg.kind, arg.token) {
        (Kind::Word, Some(token)) => token.to_owned(),
        (Kind::OneOf(words), _) => words.join(" | "),
        (_, Some(token)) => format!("{token} {}", arg.name),
        (_, None) => arg.name.to_owned(),
    };
    let words = command.args.iter().map(|arg| if arg.optional { format!("[{}]", word(arg)) } else { word(arg) });
    [command.name.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The head of a page, with both markers.
fn header(command: &Command) -> String {
    let code =
        |words: &[&str], sign: &str| words.iter().map(|word| format!("`{sign}{word}`")).collect::<Vec<_>>().join(" ");
    let least = command.arity.unsigned_abs() - 1;
    let arity = match (command.arity > 0, least) {
        (true, 1) => "1 argument".to_owned(),
        (true, n) => format!("{n} arguments"),
        (false, n) => format!("{n} arguments or more"),
    };
    let rows = [
        ("Since", command.since.to_owned()),
        ("Complexity", command.complexity.to_owned()),
        ("Arity", format!("`{}`: the name and {arity}", command.arity)),
        ("Flags", code(command.flags, "")),
        ("ACL categories", code(command.categories, "@")),
        ("Key", format!("the first argument; {}", code(command.key, ""))),
        ("Reply in RESP2", command.replies.resp2.to_owned()),
        ("Reply in RESP3", command.replies.resp3.to_owned()),
    ];
    let mut text =
        format!("# {}\n\n{}.\n\n```\n{}\n```\n\n| | |\n|---|---|\n", command.name, command.summary, syntax(command));
    for (name, value) in rows {
        text += &format!("| {name} | {value} |\n");
    }
    format!("{BEGIN}{text}{END}")
}

#[test]
fn the_head_of_each_page_is_what_the_table_says() {
    let write = std::env::var_os("SLUICE_DOCS").is_some_and(|what| what == "write");
    let mut wrong = vec![];
    for command in spec::ALL {
        let file = page(command);
        let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        let rest = text.split_once(END).map_or(text.as_str(), |(_, rest)| rest);
        let wanted = format!("{}{rest}", header(command));
        if write {
            if text != wanted {
                std::fs::write(root().join(&file), wanted).unwrap();
            }
        } else if text != wanted {
            wrong.push(file);
        }
    }
    assert!(wrong.is_empty(), "not what src/spec.rs says: {wrong:?}; `make docs` writes the heads anew");
}

#[test]
fn each_command_has_a_page_and_each_page_a_command() {
    let pages: BTreeSet<PathBuf> = files().into_iter().filter(|file| file.starts_with("docs/commands")).collect();
    assert_eq!(pages, spec::ALL.iter().map(|command| page(command)).collect());
    let index = read(Path::new("docs/README.md"));
    for command in spec::ALL {
        let link = format!("(commands/{}.md)", command.name.to_lowercase());
        assert!(index.contains(&link), "docs/README.md has no link {link}");
    }
}

/// What a server offers, told by what it did with our categories.
#[derive(PartialEq)]
enum Categories {
    /// Redis 7.0: a module's commands have none.
    None,
    /// Redis 7.2: the standard ones.
    Standard,
    /// Redis 7.4, Valkey 8.0: a module's own as well.
    Own,
}

impl Categories {
    fn of(client: &mut Client) -> Self {
        let all: Vec<String> = client.call(&["ACL", "CAT"]).array().iter().map(ValueExt::text).collect();
        let info = client.call(&["COMMAND", "INFO", "LOCK.INFO"]).array()[0].array();
        match (all.iter().any(|name| name == "lock"), info[6].array().is_empty()) {
            (true, _) => Self::Own,
            (false, false) => Self::Standard,
            (false, true) => Self::None,
        }
    }
}

fn words(value: &Value) -> BTreeSet<String> {
    value.array().iter().map(ValueExt::text).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(ToString::to_string).collect()
}

#[test]
fn the_server_has_the_commands_of_the_table_and_no_other() {
    let server = Server::start();
    let listed = server.call(&["COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"]);
    let lower = |name: &String| name.to_lowercase();
    let wanted: BTreeSet<String> = spec::ALL.iter().map(|command| command.name.to_lowercase()).collect();
    assert_eq!(words(&listed).iter().map(lower).collect::<BTreeSet<_>>(), wanted);
}

#[test]
fn command_info_is_what_the_table_says() {
    let server = Server::start();
    let mut client = server.client();
    let offer = Categories::of(&mut client);
    for command in spec::ALL {
        let name = command.name;
        let info = client.call(&["COMMAND", "INFO", name]).array()[0].array();
        assert_eq!(info[1].int(), i64::from(command.arity), "arity of {name}");
        let mut flags = words(&info[2]);
        assert!(flags.remove("module"));
        assert_eq!(flags, set(command.flags), "flags of {name}");
        assert_eq!((info[3].int(), info[4].int(), info[5].int()), (1, 1, 1), "the key of {name}");

        let (own, standard) = command.categories.split_last().unwrap();
        assert!(["lock", "ratelimit"].contains(own), "the last category of {name} is the module's own");
        let categories = match offer {
            Categories::None => BTreeSet::new(),
            Categories::Standard => standard.iter().map(|category| format!("@{category}")).collect(),
            Categories::Own => command.categories.iter().map(|category| format!("@{category}")).collect(),
        };
        assert_eq!(words(&info[6]), categories, "ACL categories of {name}");

        let keys = info[8].array();
        assert_eq!(keys.len(), 1, "key specs of {name}");
        let key = keys[0].map();
        assert_eq!(words(&key["flags"]), set(command.key), "key flags of {name}");
        assert_eq!(key["begin_search"].map()["spec"].map()["index"].int(), 1);
        let range = key["find_keys"].map()["spec"].map();
        assert_eq!((range["lastkey"].int(), range["keystep"].int(), range["limit"].int()), (0, 1, 0));
    }
}

#[test]
fn command_docs_is_what_the_table_says() {
    let server = Server::start();
    for command in spec::ALL {
        let name = command.name;
        let docs = server.call(&["COMMAND", "DOCS", name]).array()[1].map();
        let field = |field: &str| docs.get(field).map(ValueExt::text).unwrap_or_default();
        assert_eq!(field("summary"), command.summary);
        assert_eq!(field("complexity"), command.complexity, "{name}");
        assert_eq!(field("since"), command.since, "{name}");
        assert_eq!(field("module"), "sluice", "{name}");
        let told: Vec<_> = docs["arguments"].array().iter().map(|argument| argument_told(&argument.map())).collect();
        let wanted: Vec<_> = command.args.iter().map(argument_wanted).collect();
        assert_eq!(told, wanted, "arguments of {name}");
    }
}

/// An argument as COMMAND DOCS has it: name, type, token, whether it is optional.
type Told = (String, String, Option<String>, bool);

fn argument_told(argument: &BTreeMap<String, Value>) -> Told {
    let optional = argument.get("flags").is_some_and(|flags| words(flags).contains("optional"));
    (argument["name"].text(), argument["type"].text(), argument.get("token").map(ValueExt::text), optional)
}

fn argument_wanted(arg: &Arg) -> Told {
    let kind = match arg.kind {
        Kind::Key => "key",
        Kind::Text => "string",
        Kind::Integer => "integer",
        Kind::Word => "pure-token",
        Kind::OneOf(_) => "oneof",
    };
    (arg.name.to_owned(), kind.to_owned(), arg.token.map(str::to_owned), arg.optional)
}

/// A call that each argument's kind allows, without the options.
fn call_of(command: &Command) -> Vec<Vec<u8>> {
    let positional = command.args.iter().filter(|arg| !arg.optional).map(|arg| match (&arg.kind, arg.name) {
        (Kind::Key, _) => format!("key-of-{}", command.name),
        (Kind::Text, name) if DURATIONS.contains(&name) => "10s".to_owned(),
        (Kind::Text, _) => "token".to_owned(),
        (Kind::Integer, _) => "5".to_owned(),
        (Kind::Word | Kind::OneOf(_), _) => panic!("a word is an option"),
    });
    [command.name.to_owned()].into_iter().chain(positional).map(String::into_bytes).collect()
}

/// Whether a reply is of the shape that a text in the table begins with, with the fields it names.
fn assert_shape(text: &str, reply: &Value, what: &str) {
    let named = |list: &str| -> Vec<String> {
        list.split(", ").map(|name| name.split(' ').next().unwrap().to_owned()).collect()
    };
    let (shape, rest) = text.split_once(':').unwrap_or((text, ""));
    match shape {
        "Integer" => assert!(matches!(reply, Value::Int(_)), "{what}: {reply:?}"),
        "Array of five integers" => {
            assert!(matches!(reply, Value::Array(_)), "{what}: {reply:?}");
            assert_eq!(reply.ints().len(), named(rest.trim()).len(), "{what}: {reply:?}");
        }
        "Map" | "Array of field, value, field, value" => {
            let (map, array) = (matches!(reply, Value::Map(_)), matches!(reply, Value::Array(_)));
            assert!(if shape == "Map" { map } else { array }, "{what}: {reply:?}");
            let fields: Vec<String> = reply.array().chunks(2).map(|pair| pair[0].text()).collect();
            assert_eq!(fields, named(rest.trim()), "{what}");
        }
        _ => panic!("{what}: teach this test the shape {shape:?}"),
    }
}

#[test]
fn replies_are_of_the_shape_the_table_says_in_both_protocols() {
    let server = Server::start();
    let (mut two, mut three) = (server.client(), server.client().resp3());
    for command in spec::ALL {
        for _ in 0..2 {
            let call = call_of(command);
            assert_shape(command.replies.resp2, &two.call(&call), &format!("{} in RESP2", command.name));
            assert_shape(command.replies.resp3, &three.call(&call), &format!("{} in RESP3", command.name));
        }
    }
    // The maps within the map of a lock that is held.
    two.call(&args!["LOCK.ACQUIRE", "held", "token", "10s"]);
    let holders = |client: &mut Client| client.call(&["LOCK.INFO", "held"]).map()["holders"].array();
    assert!(matches!(holders(&mut two)[..], [Value::Array(_)]) && matches!(holders(&mut three)[..], [Value::Map(_)]));
}

fn examples(folder: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|file| file.starts_with(folder)).collect()
}

#[track_caller]
fn assert_runs(files: Vec<PathBuf>) {
    let mut wrong = vec![];
    let server = Server::start();
    for file in files {
        server.call(&["FLUSHALL"]);
        wrong.extend(pages::run(&server, &blocks(&file)));
    }
    assert!(wrong.is_empty(), "examples that redis-cli does otherwise:\n\n{}", wrong.join("\n\n"));
}

#[test]
fn the_examples_on_the_commands_pages_do_what_they_show() {
    assert_runs(examples("docs/commands"));
    for file in examples("docs/commands") {
        assert!(blocks(&file).iter().any(pages::Block::is_console), "{}: no example", file.display());
    }
}

#[test]
fn the_examples_of_the_other_pages_do_what_they_show() {
    // Those of docs/security.md are for users that tests/acl_docs.rs makes.
    assert_runs(
        ["storage", "fencing", "README", "locks", "recipes"].map(|name| format!("docs/{name}.md").into()).into(),
    );
}

#[test]
fn the_tour_in_the_readme_does_what_it_shows() {
    assert_runs(vec!["README.md".into()]);
}

#[test]
fn after_an_unload_every_key_is_what_the_readme_says() {
    let server = Server::start();
    let mut client = server.client();
    client.call(&args!["LOCK.ACQUIRE", "lock", "token", "1h"]);
    client.call(&args!["RL.FIXED", "fixed", 5, "1h", "COST", 2]);
    client.call(&args!["RL.SLIDING", "sliding", 5, "1h"]);
    client.call(&args!["RL.BUCKET", "bucket", 5, 1, "1h"]);
    assert_eq!(client.call(&["MODULE", "UNLOAD", "sluice"]).text(), "OK");
    assert!(client.call(&["LOCK.INFO", "lock"]).is_error("ERR unknown command"));
    for key in ["lock", "fixed", "sliding", "bucket"] {
        assert_eq!(client.call(&["TYPE", key]).text(), "string");
        assert!(client.call(&["PTTL", key]).int() > 3_500_000);
    }
    assert_eq!(client.call(&["GET", "lock"]).text(), "token");
    assert_eq!(client.call(&["INCR", "fixed"]).int(), 3);
    assert_eq!(client.call(&["STRLEN", "bucket"]).int(), 25);
    assert_eq!(client.call(&["GETRANGE", "sliding", "0", "0"]).bytes(), b"\xf6");
}

/// Every call of one of our commands in a line of code, word by word.
fn calls(line: &str) -> Vec<Vec<String>> {
    let upper = line.to_ascii_uppercase();
    let mut found = vec![];
    for command in spec::ALL {
        for (at, _) in upper.match_indices(command.name) {
            let rest: String =
                line[at..].split(['`', '|', ')']).next().unwrap_or_default().replace(['\'', '"', ','], " ");
            found.push(rest.split_whitespace().map(str::to_owned).collect());
        }
    }
    found
}

/// The durations among the words of a call.
fn durations(words: &[String]) -> Vec<String> {
    let Some(command) = spec::ALL.iter().find(|command| command.name.eq_ignore_ascii_case(&words[0])) else {
        return vec![];
    };
    let positional = command.args.iter().enumerate().filter(|(_, arg)| DURATIONS.contains(&arg.name) && !arg.optional);
    positional.filter_map(|(index, _)| words.get(index + 1).cloned()).collect()
}

#[test]
fn every_duration_in_an_example_has_a_unit() {
    let (mut seen, mut wrong) = (0, vec![]);
    for file in files() {
        let mut lines: Vec<String> = read(&file).lines().map(str::to_owned).collect();
        lines.extend(blocks(&file).iter().flat_map(|block| block.lines.clone()));
        for line in lines.iter().filter(|line| ["LOCK.", "SEM.", "RL."].iter().any(|family| line.contains(family))) {
            for duration in calls(line).iter().flat_map(|words| durations(words)) {
                seen += 1;
                if duration.bytes().all(|byte| byte.is_ascii_digit()) {
                    wrong.push(format!("{}: {duration} in {line}", file.display()));
                }
            }
        }
    }
    assert!(seen > 50, "the test finds too little: {seen}");
    assert!(wrong.is_empty(), "a bare number of milliseconds:\n{}", wrong.join("\n"));
}

#[test]
fn each_page_with_a_duration_says_what_a_bare_number_is() {
    let timed = spec::ALL.iter().filter(|command| command.args.iter().any(|arg| DURATIONS.contains(&arg.name)));
    for file in timed.map(|command| page(command)).chain(["README.md".into(), "docs/README.md".into()]) {
        assert!(read(&file).contains("**A bare number is milliseconds"), "{} does not say it", file.display());
    }
}

/// The anchors of a page, as the usual viewers make them from its headings.
fn anchors(file: &Path) -> BTreeSet<String> {
    let mut code = false;
    let mut found = BTreeSet::new();
    for line in read(file).lines() {
        code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !code) {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            let sign = |sign: char| sign.is_alphanumeric() || sign == '-' || sign == '_' || sign == ' ';
            found.insert(kept.chars().filter(|c| sign(*c)).collect::<String>().replace(' ', "-"));
        }
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let mut seen = 0;
    for file in files() {
        let mut code = false;
        for line in read(&file).lines() {
            code ^= line.starts_with("```");
            for (_, rest) in line.match_indices("](").map(|(at, sign)| line.split_at(at + sign.len())).filter(|_| !code)
            {
                let link = rest.split(')').next().unwrap();
                if link.contains("://") {
                    continue;
                }
                seen += 1;
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => file.clone(),
                    path => file.parent().unwrap().join(path),
                };
                assert!(root().join(&target).exists(), "{}: {link} leads nowhere", file.display());
                if !anchor.is_empty() {
                    assert!(anchors(&target).contains(anchor), "{}: no heading for {link}", file.display());
                }
            }
        }
    }
    assert!(seen > 30, "the test finds too little: {seen}");
}

#[test]
fn an_example_that_shows_something_else_is_found() {
    let server = Server::start();
    let console = |lines: &[&str]| pages::Block {
        place: "here".to_owned(),
        info: "console".to_owned(),
        lines: lines.iter().map(ToString::to_string).collect(),
    };
    let right = console(&[
        "> LOCK.ACQUIRE a t 30s",
        "(integer) 1796043976185848",
        "# only a remark",
        "> LOCK.ACQUIRE a t 30s",
        "(integer) 1796043976190000",
        "> PTTL a",
        "(integer) 29800",
        "> LOCK.ACQUIRE a t x",
        "(error) ERR invalid ttl: expected 1ms to 3660d, as milliseconds or with a unit (ms, s, m, h, d)",
    ]);
    assert_eq!(right.steps().iter().filter(|step| matches!(step, Step::Call { .. })).count(), 4);
    assert_eq!(pages::run(&server, &[right]), Vec::<String>::new());
    for (call, shown) in [
        ("LOCK.ACQUIRE a other 30s", "(integer) 1796043976185848"),
        ("LOCK.ACQUIRE a t 30s", "(integer) 1"),
        ("LOCK.RELEASE a other", "(integer) 1"),
        ("PTTL a", "(integer) 3000"),
        ("GET a", "\"other\""),
        ("PING", ""),
    ] {
        assert_eq!(pages::run(&server, &[console(&[&format!("> {call}"), shown])]).len(), 1, "{call}");
    }
    let order = [
        "> LOCK.ACQUIRE a t 30s",
        "(integer) 2796043976185848",
        "> LOCK.ACQUIRE a t 30s",
        "(integer) 1796043976185848",
    ];
    assert_eq!(pages::run(&server, &[console(&order)]).len(), 1);
}
