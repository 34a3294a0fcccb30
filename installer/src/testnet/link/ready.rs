//! When a link and its addresses really work: the kernel does the last steps of both after it has
//! acknowledged the change.

use super::super::rtnetlink::{Group, Rtnetlink, RtnetlinkError};
use super::{LinkEnd, LinkError};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, State};
use std::fs;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// How long the kernel may take; seen is a millisecond.
const WITHIN: Duration = Duration::from_secs(5);

/// Both ends are up only when the kernel's link watcher has said so: until then packets are lost.
pub(super) fn until_up(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    let what = || format!("interface {}", end.name.as_str());
    wait(Group::Links, what, |kernel| {
        let mut question = LinkMessage::default();
        question.header.index = index;
        let answer = kernel.ask(RouteNetlinkMessage::GetLink(question))?;
        let up = LinkAttribute::OperState(State::Up);
        Ok(matches!(answer, RouteNetlinkMessage::NewLink(link) if link.attributes.contains(&up)))
    })
}

/// Its neighbours ask for an IPv6 address in a multicast group, which the kernel joins in a work item
/// of its own (net/ipv6/addrconf.c, `addrconf_dad_work`, v6.18). Who asks before is asked to wait a
/// second (RFC 4861, RetransTimer).
pub(super) fn until_found(address: Ipv6Addr, index: u32) -> Result<(), LinkError> {
    let [.., a, b, c] = address.octets();
    let wanted = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    wait(
        Group::Ipv6Addresses,
        || format!("address {address}"),
        |_| {
            // The file of this thread's namespace: /proc/net is the process's.
            let groups = fs::read_to_string("/proc/thread-self/net/igmp6")?;
            let joined = |line: &str| {
                let mut words = line.split_whitespace();
                words.next().is_some_and(|word| word == index.to_string()) && words.nth(1) == Some(&wanted)
            };
            Ok(groups.lines().any(joined))
        },
    )
}

/// Asks `is_so` at once and after each change the kernel tells of in `group`.
fn wait(
    group: Group,
    what: impl Fn() -> String,
    is_so: impl Fn(&mut Rtnetlink) -> Result<bool, RtnetlinkError>,
) -> Result<(), LinkError> {
    let deadline = Instant::now() + WITHIN;
    let step = |source| LinkError::Step { step: format!("wait for {}", what()), source };
    let mut kernel = Rtnetlink::open().map_err(step)?;
    kernel.watch(group).map_err(step)?;
    while !is_so(&mut kernel).map_err(step)? {
        if Instant::now() >= deadline {
            return Err(LinkError::NotReady { what: what(), seconds: WITHIN.as_secs() });
        }
        kernel.hear(deadline).map_err(step)?;
    }
    Ok(())
}
