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

/// Finds the owner of `slot` in the reply of `CLUSTER NODES`.
///
/// A line is `id host:port@busport[,hostname] flags primary ping pong epoch link slot slot …`, a slot a number, a range
/// `from-to`, or `[slot->-node]` and `[slot-<-node]` for one on its way.
#[must_use]
pub fn owner(nodes: &str, slot: u16) -> Owner {
    for line in nodes.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(_id), Some(address), Some(flags)) = (words.next(), words.next(), words.next()) else { continue };
        if !words.skip(5).any(|range| covers(range, slot)) {
            continue;
        }
        if flags.split(',').any(|flag| flag == "myself") {
            return Owner::Myself;
        }
        let address = address.split('@').next().unwrap_or_default();
        let known = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port != "0");
        return if known { Owner::Other(address.to_owned()) } else { Owner::Unknown };
    }
    Owner::Unknown
}

fn covers(range: &str, slot: u16) -> bool {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(owner(NODES, 0), Owner::Myself);
        assert_eq!(owner(NODES, 5460), Owner::Myself);
        assert_eq!(owner(NODES, 5461), Owner::Other("127.0.0.1:30002".into()));
        assert_eq!(owner(NODES, 16383), Owner::Other("127.0.0.1:30002".into()));
    }

    #[test]
    fn a_slot_on_its_way_or_of_a_node_without_an_address_has_no_known_owner() {
        assert_eq!(owner(NODES, 12000), Owner::Unknown);
        assert_eq!(owner(NODES, 16001), Owner::Unknown);
        assert_eq!(owner("", 1), Owner::Unknown);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in ".{0,200}", slot in any::<u16>()) {
            let _ = owner(&text, slot);
        }
    }
}
