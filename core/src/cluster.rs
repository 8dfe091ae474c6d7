//! Reading `CLUSTER NODES`: who serves a slot.

/// Who serves a slot, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The node that was asked.
    Myself,
    /// Another one, at `host:port`.
    Other(String),
    /// Nobody is known.
    Unknown,
}

/// By what a server names other nodes to its clients: its `cluster-preferred-endpoint-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// By their addresses.
    #[default]
    Ip,
    /// By their names; `?` stands for one that has none.
    Hostname,
    /// Not at all: clients go on with the host they know, and only the port is told.
    Unknown,
}

impl Endpoint {
    /// As the setting has it; what is not known here is taken for the default.
    #[must_use]
    pub fn of(setting: &str) -> Self {
        match setting {
            "hostname" => Self::Hostname,
            "unknown-endpoint" => Self::Unknown,
            _ => Self::Ip,
        }
    }
}

/// Finds the owner of `slot` in the reply of `CLUSTER NODES`, named as the server would name it to its clients.
///
/// A line is `id host:port@busport[,hostname] flags primary ping pong epoch link slot slot …`, a slot a number, a range
/// `from-to`, or `[slot->-node]` and `[slot-<-node]` for one on its way.
#[must_use]
pub fn owner(nodes: &str, slot: u16, by: Endpoint) -> Owner {
    for line in nodes.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(_id), Some(address), Some(flags)) = (words.next(), words.next(), words.next()) else { continue };
        if !words.skip(5).any(|range| covers(range, slot)) {
            continue;
        }
        if flags.split(',').any(|flag| flag == "myself") {
            return Owner::Myself;
        }
        let mut parts = address.split(',');
        let address = parts.next().unwrap_or_default().split('@').next().unwrap_or_default();
        // Behind the name some servers tell more, as `what=value`.
        let name = parts.next().filter(|name| !name.is_empty() && !name.contains('=')).unwrap_or("?");
        return match (address.rsplit_once(':'), by) {
            (None | Some((_, "0")), _) | (Some(("", _)), Endpoint::Ip) => Owner::Unknown,
            (Some(_), Endpoint::Ip) => Owner::Other(address.to_owned()),
            (Some((_, port)), Endpoint::Hostname) => Owner::Other(format!("{name}:{port}")),
            (Some((_, port)), Endpoint::Unknown) => Owner::Other(format!(":{port}")),
        };
    }
    Owner::Unknown
}

fn covers(range: &str, slot: u16) -> bool {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::Endpoint::{Hostname, Ip};
    use super::*;
    use proptest::prelude::*;

    const NODES: &str = "\
07c3 127.0.0.1:30004@31004,host-4 slave e7d1 0 1426238317239 4 connected
67ed 127.0.0.1:30002@31002 master - 0 1426238316232 2 connected 5461-10922 16383
292f :30003@31003 master - 0 1426238318243 3 connected 10923-16000
e7d1 127.0.0.1:30001@31001,host-1 myself,master - 0 0 1 connected 0-5460 [93-<-292f] [16001->-67ed]
";

    #[test]
    fn the_owner_of_a_slot_is_read_from_ranges_and_single_numbers() {
        assert_eq!(owner(NODES, 0, Ip), Owner::Myself);
        assert_eq!(owner(NODES, 5460, Ip), Owner::Myself);
        assert_eq!(owner(NODES, 5461, Ip), Owner::Other("127.0.0.1:30002".into()));
        assert_eq!(owner(NODES, 16383, Ip), Owner::Other("127.0.0.1:30002".into()));
    }

    #[test]
    fn a_slot_on_its_way_or_of_a_node_without_an_address_has_no_known_owner() {
        assert_eq!(owner(NODES, 12000, Ip), Owner::Unknown);
        assert_eq!(owner(NODES, 16001, Ip), Owner::Unknown);
        assert_eq!(owner("", 1, Ip), Owner::Unknown);
    }

    #[test]
    fn the_owner_is_named_as_the_server_would() {
        let nodes = "a 10.0.0.1:1@11,one.test master - 0 0 1 connected 0\nb 10.0.0.2:2@12 master - 0 0 1 connected 1\n\
                     c 10.0.0.3:3@13,,shard-id=x master - 0 0 1 connected 2\nd ::1:4@14,four.test,tls=0 master - 0 0 1 connected 3\n\
                     e 10.0.0.5:5@15,shard-id=x master - 0 0 1 connected 4\n";
        let name = |slot, by| match owner(nodes, slot, by) {
            Owner::Other(address) => address,
            other => format!("{other:?}"),
        };
        let all = |by| (0..5).map(|slot| name(slot, by)).collect::<Vec<_>>().join(" ");
        assert_eq!(all(Endpoint::of("ip")), "10.0.0.1:1 10.0.0.2:2 10.0.0.3:3 ::1:4 10.0.0.5:5");
        assert_eq!(all(Endpoint::of("hostname")), "one.test:1 ?:2 ?:3 four.test:4 ?:5");
        assert_eq!(all(Endpoint::of("unknown-endpoint")), ":1 :2 :3 :4 :5");
        assert_eq!(Endpoint::of("of a later server"), Endpoint::default());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in ".{0,200}", slot in any::<u16>()) {
            for by in [Ip, Hostname, Endpoint::Unknown] {
                let _ = owner(&text, slot, by);
            }
        }
    }
}
