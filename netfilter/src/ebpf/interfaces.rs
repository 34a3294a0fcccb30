//! What is attached to the interfaces of a network namespace: XDP programs, tcx programs, and the filters of
//! traffic control. All of them see a packet before or behind netfilter's hooks, and may rewrite it or send it
//! elsewhere.

use super::bpf::{self, Target};
use super::{Effect, Programs};
use crate::netlink::attr::Attributes;
use crate::routes::Rtnetlink;
use nix::errno::Errno;

// include/uapi/linux/rtnetlink.h and if_link.h, v6.18.
const RTM_GETLINK: u16 = 18;
const RTM_GETQDISC: u16 = 38;
const RTM_GETTFILTER: u16 = 46;
const IFLA_IFNAME: u16 = 3;
const IFLA_XDP: u16 = 43;
/// `IFLA_XDP_PROG_ID`, and one for each mode (driver, generic, hardware).
const XDP_PROGRAMS: std::ops::RangeInclusive<u16> = 4..=7;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
/// include/uapi/linux/pkt_cls.h.
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// `struct tcmsg`: the interface's index at 4, the handle at 8, the parent at 12.
const TC_HEADER: usize = 20;
/// The parents of filters on ingress and egress (`TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS` of `TC_H_CLSACT`).
const CLSACT: [(u32, &str); 2] = [(0xffff_fff2, "ingress"), (0xffff_fff3, "egress")];
/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS` (Linux 6.6).
const TCX: [(u32, &str); 2] = [(46, "ingress"), (47, "egress")];

const REWRITES: Effect = Effect::Diverts("may rewrite, redirect or drop packets");

pub(super) fn read(routing: &mut Rtnetlink, found: &mut Programs) {
    let Ok(links) = routing.request_list("interfaces", RTM_GETLINK, &[0; LINK_HEADER]) else {
        found.cannot_read("at the interfaces", Errno::EIO);
        return;
    };
    let links: Vec<Link> = links.iter().filter_map(|entry| link(entry)).collect();
    for link in &links {
        for program in &link.xdp {
            found.note(*program, &format!("XDP of {}", link.name), REWRITES);
        }
        for (attach_type, direction) in TCX {
            match bpf::programs_at(Target::Interface(link.index), attach_type) {
                Ok(ids) => {
                    let place = format!("tcx {direction} of {}", link.name);
                    ids.into_iter().for_each(|id| found.note(id, &place, REWRITES));
                }
                Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENODEV) => {}
                Err(why) => found.cannot_read("at tcx of the interfaces", why),
            }
        }
    }
    // A kernel without traffic control lists nothing.
    let queues =
        routing.request_list("queueing disciplines", RTM_GETQDISC, &[0; TC_HEADER]).unwrap_or_default();
    let queues: Vec<Queue> = queues.iter().filter_map(|entry| queue(entry)).collect();
    for link in &links {
        for queue in queues.iter().filter(|queue| queue.interface == link.index) {
            for (parent, place) in queue.parents() {
                filters(routing, link, parent, place, found);
            }
        }
    }
}

fn filters(routing: &mut Rtnetlink, link: &Link, parent: u32, place: &str, found: &mut Programs) {
    let mut header = [0; TC_HEADER];
    header[4..8].copy_from_slice(&link.index.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    // A discipline without filters refuses the question.
    for entry in
        routing.request_list("filters of traffic control", RTM_GETTFILTER, &header).unwrap_or_default()
    {
        let place = format!("tc {place} of {}", link.name);
        match filter(&entry) {
            Some(Filter::Program(id)) => found.note(id, &place, REWRITES),
            Some(Filter::Other(name)) => {
                let sentence = format!("filter {name} at {place} is not evaluated");
                found.add(Programs { diverting: vec![sentence], ..Programs::default() });
            }
            None => {}
        }
    }
}

struct Link {
    index: u32,
    name: String,
    xdp: Vec<u32>,
}

fn link(entry: &[u8]) -> Option<Link> {
    let (header, rest) = entry.split_first_chunk::<LINK_HEADER>()?;
    let attributes = Attributes::of(rest);
    let xdp = attributes.get(IFLA_XDP).map_or(&[][..], |xdp| xdp.value);
    let programs = Attributes::of(xdp).filter(|attribute| XDP_PROGRAMS.contains(&attribute.kind));
    let mut xdp: Vec<u32> = programs.filter_map(|id| id.ne32()).filter(|id| *id != 0).collect();
    xdp.dedup();
    Some(Link { index: number(header, 4)?, name: attributes.get(IFLA_IFNAME)?.name(), xdp })
}

/// A queueing discipline.
struct Queue {
    interface: u32,
    handle: u32,
    kind: String,
}

impl Queue {
    /// Where its filters hang. Those of its classes are not asked for.
    fn parents(&self) -> Vec<(u32, &'static str)> {
        match self.kind.as_str() {
            "clsact" => CLSACT.to_vec(),
            "ingress" => CLSACT[..1].to_vec(),
            // Without a handle it has no filters (`noqueue`).
            _ if self.handle == 0 => Vec::new(),
            _ => vec![(self.handle, "egress")],
        }
    }
}

fn queue(entry: &[u8]) -> Option<Queue> {
    let (header, rest) = entry.split_first_chunk::<TC_HEADER>()?;
    let kind = Attributes::of(rest).get(TCA_KIND)?.name();
    Some(Queue { interface: number(header, 4)?, handle: number(header, 8)?, kind })
}

enum Filter {
    /// An eBPF program.
    Program(u32),
    /// Another kind, or a program of classic BPF.
    Other(String),
}

/// Reads one entry; none for the head of a list of filters, which has no handle.
fn filter(entry: &[u8]) -> Option<Filter> {
    let (header, rest) = entry.split_first_chunk::<TC_HEADER>()?;
    let attributes = Attributes::of(rest);
    let kind = attributes.get(TCA_KIND)?.name();
    let options = Attributes::of(attributes.get(TCA_OPTIONS).map_or(&[], |options| options.value));
    number(header, 8).filter(|handle| *handle != 0)?;
    if kind != "bpf" {
        return Some(Filter::Other(kind));
    }
    Some(match options.get(TCA_BPF_ID).and_then(|id| id.ne32()) {
        Some(id) => Filter::Program(id),
        None => Filter::Other(match options.get(TCA_BPF_NAME) {
            Some(name) => format!("bpf {}", name.name()),
            None => kind,
        }),
    })
}

fn number(header: &[u8], at: usize) -> Option<u32> {
    header.get(at..)?.first_chunk().map(|field| u32::from_ne_bytes(*field))
}
