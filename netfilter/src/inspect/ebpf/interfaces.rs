//! The XDP programs, tcx programs and traffic control filters at the interfaces of a network namespace. All of them see
//! a packet before or behind netfilter's hooks, and may rewrite it or send it elsewhere.

use super::bpf::{self, AttachPoint};
use super::{ProgramEffect, Programs};
use crate::kernel::netlink::attr::Attributes;
use crate::kernel::routes::{Link, RoutesError, Rtnetlink};
use nix::errno::Errno;
use std::collections::HashMap;
use std::error::Error;

/// A namespace with more queueing disciplines is not evaluated.
const MAX_DISCIPLINES: usize = 2_000;
/// A namespace with more filters of traffic control is not evaluated.
const MAX_FILTERS: usize = 1_000;

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

const REWRITES: ProgramEffect = ProgramEffect::Diverts("may rewrite, redirect or drop packets");

pub(super) fn read(routing: &mut Rtnetlink, found: &mut Programs) {
    if let Err(why) = programs_at_interfaces(routing, found) {
        let cause = why.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        found.not_evaluated(format!("programs at the interfaces: {why}{cause}"));
    }
}

fn programs_at_interfaces(routing: &mut Rtnetlink, found: &mut Programs) -> Result<(), RoutesError> {
    let links = routing.links()?;
    for link in &links {
        for program in &link.xdp_programs {
            found.add_program(*program, &format!("XDP of {}", link.name), REWRITES);
        }
        for (attach_type, direction) in TCX {
            match bpf::programs_at(AttachPoint::Interface(link.index), attach_type) {
                Ok(ids) => {
                    let hook = format!("tcx {direction} of {}", link.name);
                    ids.into_iter().for_each(|id| found.add_program(id, &hook, REWRITES));
                }
                Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENODEV) => {}
                Err(why) => found.cannot_read("at tcx of the interfaces", why),
            }
        }
    }
    let disciplines = "queueing disciplines";
    let disciplines = match routing.request_list(disciplines, RTM_GETQDISC, &[0; TC_HEADER], MAX_DISCIPLINES)
    {
        // A kernel without traffic control.
        Err(RoutesError::List { source: Errno::EOPNOTSUPP, .. }) => return Ok(()),
        outcome => outcome?,
    };
    let mut by_interface: HashMap<u32, Vec<Discipline>> = HashMap::new();
    for discipline in disciplines.iter().filter_map(|entry| discipline(entry)) {
        by_interface.entry(discipline.interface).or_default().push(discipline);
    }
    let mut filters_read = 0;
    for link in &links {
        match by_interface.get(&link.index) {
            Some(disciplines) => {
                for (parent, direction) in disciplines.iter().flat_map(Discipline::parents) {
                    filters_read += filters(routing, link, parent, direction, found)?;
                    if filters_read > MAX_FILTERS {
                        return Err(RoutesError::TooLarge { what: FILTERS, most: MAX_FILTERS });
                    }
                }
            }
            // Every interface that was brought up has one, also `noqueue`. The kernel ends the list before one that is
            // longer than its datagram (`tc_dump_qdisc`, net/sched/sch_api.c, v6.18).
            None if !link.is_raised => {}
            None => found.not_evaluated(format!("the queueing disciplines of {} are not listed", link.name)),
        }
    }
    Ok(())
}

const FILTERS: &str = "filters of traffic control";

/// Adds the filters of a discipline; returns their number. A discipline without filters has an empty list; the kernel
/// refuses a list only when it cannot report a filter (`tc_dump_tfilter`, net/sched/cls_api.c, v6.18).
fn filters(
    routing: &mut Rtnetlink,
    link: &Link,
    parent: u32,
    direction: &str,
    found: &mut Programs,
) -> Result<usize, RoutesError> {
    let mut header = [0; TC_HEADER];
    header[4..8].copy_from_slice(&link.index.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    let entries = routing.request_list(FILTERS, RTM_GETTFILTER, &header, MAX_FILTERS)?;
    for entry in &entries {
        let hook = format!("tc {direction} of {}", link.name);
        match filter(entry) {
            Some(Filter::Program(id)) => found.add_program(id, &hook, REWRITES),
            Some(Filter::Other(name)) => {
                found.not_evaluated(format!("filter {name} at {hook} is not evaluated"));
            }
            None => {}
        }
    }
    Ok(entries.len())
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
    let kind = Attributes::of(rest).name(TCA_KIND)?;
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
    let kind = attributes.name(TCA_KIND)?;
    let options = attributes.nested(TCA_OPTIONS);
    number(header, 8).filter(|handle| *handle != 0)?;
    if kind != "bpf" {
        return Some(Filter::Other(kind));
    }
    Some(match options.ne32(TCA_BPF_ID) {
        Some(id) => Filter::Program(id),
        None => Filter::Other(match options.get(TCA_BPF_NAME) {
            Some(name) => format!("bpf {}", name.name()),
            None => kind,
        }),
    })
}

pub(super) fn discipline_in(entry: &[u8]) -> Option<String> {
    Some(discipline(entry)?.kind)
}

pub(super) fn filter_in(entry: &[u8]) -> Option<String> {
    match filter(entry)? {
        Filter::Program(id) => Some(id.to_string()),
        Filter::Other(name) => Some(name),
    }
}

fn number(header: &[u8], at: usize) -> Option<u32> {
    header.get(at..)?.first_chunk().map(|field| u32::from_ne_bytes(*field))
}
