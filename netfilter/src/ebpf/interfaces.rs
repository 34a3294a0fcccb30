//! The XDP programs, tcx programs and traffic control filters at the interfaces of a network namespace. All of them see
//! a packet before or behind netfilter's hooks, and may rewrite it or send it elsewhere.

use super::bpf::{self, Target};
use super::{Effect, Programs};
use crate::netlink::attr::Attributes;
use crate::routes::{Link, Rtnetlink};
use nix::errno::Errno;

// include/uapi/linux/rtnetlink.h, v6.18.
const RTM_GETQDISC: u16 = 38;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
/// include/uapi/linux/pkt_cls.h.
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

/// `struct tcmsg`: the interface's index at 4, the handle at 8, the parent at 12.
const TC_HEADER: usize = 20;
/// The parents of filters on ingress and egress (`TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS` of `TC_H_CLSACT`).
const CLSACT: [(u32, &str); 2] = [(0xffff_fff2, "ingress"), (0xffff_fff3, "egress")];
/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS` (Linux 6.6).
const TCX: [(u32, &str); 2] = [(46, "ingress"), (47, "egress")];

const REWRITES: Effect = Effect::Diverts("may rewrite, redirect or drop packets");

pub(super) fn read(routing: &mut Rtnetlink, found: &mut Programs) {
    let Ok(links) = routing.links() else {
        found.cannot_read("at the interfaces", Errno::EIO);
        return;
    };
    for link in &links {
        for program in &link.xdp_programs {
            found.add_program(*program, &format!("XDP of {}", link.name), REWRITES);
        }
        for (attach_type, direction) in TCX {
            match bpf::programs_at(Target::Interface(link.index), attach_type) {
                Ok(ids) => {
                    let hook = format!("tcx {direction} of {}", link.name);
                    ids.into_iter().for_each(|id| found.add_program(id, &hook, REWRITES));
                }
                Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENODEV) => {}
                Err(why) => found.cannot_read("at tcx of the interfaces", why),
            }
        }
    }
    // A kernel without traffic control lists nothing.
    let disciplines =
        routing.request_list("queueing disciplines", RTM_GETQDISC, &[0; TC_HEADER]).unwrap_or_default();
    let disciplines: Vec<Discipline> = disciplines.iter().filter_map(|entry| discipline(entry)).collect();
    for link in &links {
        for discipline in disciplines.iter().filter(|one| one.interface == link.index) {
            for (parent, direction) in discipline.parents() {
                filters(routing, link, parent, direction, found);
            }
        }
    }
}

fn filters(routing: &mut Rtnetlink, link: &Link, parent: u32, direction: &str, found: &mut Programs) {
    let mut header = [0; TC_HEADER];
    header[4..8].copy_from_slice(&link.index.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    // The kernel refuses the request for a discipline without filters.
    for entry in
        routing.request_list("filters of traffic control", RTM_GETTFILTER, &header).unwrap_or_default()
    {
        let hook = format!("tc {direction} of {}", link.name);
        match filter(&entry) {
            Some(Filter::Program(id)) => found.add_program(id, &hook, REWRITES),
            Some(Filter::Other(name)) => {
                let sentence = format!("filter {name} at {hook} is not evaluated");
                found.add(Programs { diverting: vec![sentence], ..Programs::default() });
            }
            None => {}
        }
    }
}

/// A queueing discipline.
struct Discipline {
    interface: u32,
    handle: u32,
    kind: String,
}

impl Discipline {
    /// The parents of its filters, each with the direction of its packets. Filters of its classes are not read.
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

fn discipline(entry: &[u8]) -> Option<Discipline> {
    let (header, rest) = entry.split_first_chunk::<TC_HEADER>()?;
    let kind = Attributes::of(rest).get(TCA_KIND)?.name();
    Some(Discipline { interface: number(header, 4)?, handle: number(header, 8)?, kind })
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
