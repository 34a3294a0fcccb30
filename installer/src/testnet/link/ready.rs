//! Waits until a link and its addresses work: the kernel does the last steps of both after it has acknowledged
//! the change.

use super::super::rtnetlink::{Group, Rtnetlink, RtnetlinkError};
use super::{LinkEnd, LinkError};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, State};
use std::fs;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// The kernel's time limit; a millisecond is usual.
const WITHIN: Duration = Duration::from_secs(5);

/// Waits until the kernel's link watcher reports the end as up: until then packets are lost.
pub(super) fn until_up(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    let what = || format!("interface {}", end.name.as_str());
    wait(Group::Links, what, |kernel| {
        let mut request = LinkMessage::default();
        request.header.index = index;
        let reply = kernel.get(RouteNetlinkMessage::GetLink(request))?;
        let up = LinkAttribute::OperState(State::Up);
        Ok(matches!(reply, RouteNetlinkMessage::NewLink(link) if link.attributes.contains(&up)))
    })
}

/// Waits until the kernel has joined the multicast group in which neighbours solicit the address. It joins in a work
/// item of its own (net/ipv6/addrconf.c, `addrconf_dad_work`, v6.18). A solicitation before that is repeated only
/// after a second (RFC 4861, RetransTimer).
pub(super) fn until_multicast_joined(address: Ipv6Addr, index: u32) -> Result<(), LinkError> {
    let [.., a, b, c] = address.octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    wait(
        Group::Ipv6Addresses,
        || format!("address {address}"),
        |_| {
            // Of this thread's namespace; /proc/net shows the process's.
            let groups = fs::read_to_string("/proc/thread-self/net/igmp6")?;
            let joined = |line: &str| {
                let mut words = line.split_whitespace();
                words.next().is_some_and(|word| word == index.to_string()) && words.nth(1) == Some(&group)
            };
            Ok(groups.lines().any(joined))
        },
    )
}

/// Checks `is_ready` at once and after each change that the kernel announces in `group`.
fn wait(
    group: Group,
    what: impl Fn() -> String,
    is_ready: impl Fn(&mut Rtnetlink) -> Result<bool, RtnetlinkError>,
) -> Result<(), LinkError> {
    let deadline = Instant::now() + WITHIN;
    let step = |source| LinkError::Step { step: format!("wait for {}", what()), source };
    let mut kernel = Rtnetlink::open().map_err(step)?;
    kernel.subscribe(group).map_err(step)?;
    while !is_ready(&mut kernel).map_err(step)? {
        if Instant::now() >= deadline {
            return Err(LinkError::NotReady { what: what(), seconds: WITHIN.as_secs() });
        }
        kernel.wait(deadline).map_err(step)?;
    }
    Ok(())
}
