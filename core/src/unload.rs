//! Reading `ACL LIST` and `CLIENT LIST` before the module goes: who would be left with commands that are no more?

use crate::args;

/// Does a line of `ACL LIST` name one of our commands, to allow or to bar it?
///
/// A line is `user name rule rule …`; a rule may stand in the parentheses of a selector.
#[must_use]
pub fn is_named(user: &[u8], is_ours: impl Fn(&[u8]) -> bool) -> bool {
    // The name of a user is anybody's choice.
    user.split(|byte| *byte == b' ').skip(2).any(|rule| {
        let rule = rule.strip_prefix(b"(").unwrap_or(rule);
        let rule = rule.strip_suffix(b")").unwrap_or(rule);
        rule.split_first().is_some_and(|(sign, name)| b"+-".contains(sign) && is_ours(name))
    })
}

/// The ids of the clients in `CLIENT LIST` that would have the server run one of our commands: those in the middle of a
/// transaction, of which nothing tells what is in it, those that a pause keeps from running one, and, where the server
/// `remembers` the last command of each client, those whose last one is ours.
///
/// Not among them are the client whose command this is, for it cannot be closed while it runs, and a replica's primary, which
/// sends no command of ours.
#[must_use]
pub fn left_behind(clients: &[u8], remembers: bool, is_ours: impl Fn(&[u8]) -> bool) -> Vec<u64> {
    let mut ids = Vec::new();
    for line in clients.split(|byte| *byte == b'\n') {
        let field = |name: &[u8]| line.split(|byte| *byte == b' ').find_map(|field| field.strip_prefix(name));
        let (Some(id), Some(last)) = (field(b"id=").and_then(args::integer), field(b"cmd=")) else { continue };
        let has_flag = |flag| field(b"flags=").is_none_or(|flags| flags.contains(&flag));
        let is_paused = has_flag(b'b');
        let runs = last.eq_ignore_ascii_case(b"exec") || last.eq_ignore_ascii_case(b"module|unload");
        let has_queued = field(b"multi=").and_then(args::integer).is_some_and(|queued| queued > 0);
        let has_one = (has_queued && (!runs || is_paused)) || ((remembers || is_paused) && is_ours(last));
        if has_one && !has_flag(b'M') {
            ids.push(id);
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ours(name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(b"RL.FIXED") || name.eq_ignore_ascii_case(b"LOCK.ACQUIRE")
    }

    #[test]
    fn a_rule_that_names_a_command_is_found_wherever_it_stands() {
        for line in [
            "user u on nopass ~* resetchannels -@all +lock.acquire",
            "user u on nopass ~* +@all -rl.fixed",
            "user u off #0000 ~* (~k +get +rl.fixed) +ping",
            "user u off ~* (+LOCK.ACQUIRE ~k)",
        ] {
            assert!(is_named(line.as_bytes(), is_ours), "{line}");
        }
        for line in [
            "user default on nopass ~* &* +@all",
            "user u on ~lock.acquire +@lock -@ratelimit +get",
            "user +rl.fixed on ~+rl.fixed &+rl.fixed %R~rl.fixed +rl.fixed2 +rl",
            "user",
            "",
            "( ) + -",
        ] {
            assert!(!is_named(line.as_bytes(), is_ours), "{line}");
        }
    }

    #[test]
    fn who_would_run_a_command_of_ours_is_told_from_all_others() {
        let clients = b"id=3 addr=a:1 name= flags=N db=0 multi=-1 cmd=rl.fixed user=u resp=2\n\
            id=4 addr=a:2 name=id=9 flags=x db=0 multi=2 cmd=set user=u resp=2\n\
            id=5 addr=a:3 name= flags=x db=0 multi=0 cmd=multi user=u resp=2\n\
            id=6 addr=a:4 name= flags=N db=0 multi=-1 cmd=module|unload user=u resp=2\n\
            id=7 addr=a:5 name= flags=x db=0 multi=3 cmd=exec user=u resp=2\n\
            id=8 addr=a:6 name= flags=M db=0 multi=4 cmd=set user=u resp=2\n\
            id=10 addr=a:7 name= flags=S db=0 multi=-1 cmd=replconf user=\xff resp=2\n\
            id=11 addr=a:8 name= flags=N db=0 multi=-1 cmd=NULL user=u resp=2\n\
            id=12 addr=a:9 name= flags=b db=0 multi=-1 cmd=lock.acquire user=u resp=2\n\
            id=13 addr=a:10 name= flags=b db=0 multi=-1 cmd=blpop user=u resp=2\n\
            id=14 addr=a:11 name= flags=xb db=0 multi=2 cmd=exec user=u resp=2\n\
            id=15 addr=a:12 name= flags=Mx db=0 multi=2 cmd=rl.fixed user=u resp=2\n\
            id=18446744073709551616 flags=N multi=1 cmd=get\n\
            nothing=at all\n";
        assert_eq!(left_behind(clients, false, is_ours), [4, 12, 14]);
        assert_eq!(left_behind(clients, true, is_ours), [3, 4, 12, 14]);
        assert!(left_behind(b"", true, is_ours).is_empty());
    }
}
