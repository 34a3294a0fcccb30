//! Functions at netfilter's hooks that are not chains: eBPF programs and IPVS.
//!
//! The kernel lists the functions of each hook (CONFIG_NETFILTER_NETLINK_HOOK, Linux 5.14; programs are marked
//! since 6.4). Where it does not, the eBPF programs at netfilter hooks are found among all links of the machine, and
//! their namespaces are not known.

use super::{ProgramEffect, Programs, bpf};
use crate::kernel::netlink::attr::{Attribute, Attributes, Writer};
use crate::kernel::netlink::list::{Limit, Listed};
use crate::kernel::netlink::message::{DUMP, Header, REQUEST};
use crate::kernel::netlink::socket::Socket;
use crate::model::ruleset::{Family, Hook};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

// include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_hook.h, v6.18.
const NFNL_SUBSYS_HOOK: u16 = 12;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_PRIORITY: u16 = 2;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;
const NFNLA_HOOK_INFO_DESC: u16 = 1;
const NFNLA_HOOK_INFO_TYPE: u16 = 2;
const NFNLA_HOOK_BPF_ID: u16 = 1;
/// `NFNL_HOOK_TYPE_BPF`.
const TYPE_BPF: u32 = 2;

/// How many functions of one hook are read: the chains of nf_tables are among them.
const MOST_FUNCTIONS: usize = 20_000;

/// `struct nfgenmsg`.
const GENERIC: usize = 4;

/// A program may accept and drop, and nothing else (`nf_is_valid_access`, net/netfilter/nf_bpf_link.c). The
/// outcome is unknown all the same: like a rule it may drop the connections that our rules redirect.
const DROPS: ProgramEffect = ProgramEffect::Diverts("may drop connections");

/// The effect of a program whose namespace is not known.
const MAY_DROP_IN_UNKNOWN_NAMESPACE: ProgramEffect =
    ProgramEffect::Filters("may drop connections; the kernel does not report its network namespace");

pub(super) fn read(found: &mut Programs) {
    match functions() {
        Ok(Some(functions)) => functions.iter().for_each(|function| function.add_to(found)),
        Ok(None) => links(found),
        Err(why) => found.cannot_read("at netfilter hooks", why),
    }
}

fn links(found: &mut Programs) {
    match bpf::netfilter_links() {
        Ok(links) => {
            for link in links {
                let hook = Hook::numbered(link.hook).map_or("unknown", Hook::name);
                let hook = format!("netfilter hook {hook} priority {}", link.priority);
                found.add_program(link.program, &hook, MAY_DROP_IN_UNKNOWN_NAMESPACE);
            }
        }
        // A kernel without links has none at netfilter hooks.
        Err(Errno::EINVAL | Errno::ENOSYS) => {}
        Err(why) => found.cannot_read("at netfilter hooks", why),
    }
}

/// A function at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    hook: Hook,
    priority: i32,
    /// None where the kernel has no symbols.
    name: Option<String>,
    program: Option<u32>,
}

impl Function {
    /// Adds the function when it may change the outcome of a connection. Of the functions that are not chains, IPVS and
    /// ILA rewrite addresses. The others (conntrack, defragmentation, address translation, security modules) are
    /// evaluated or change no address.
    fn add_to(&self, found: &mut Programs) {
        let hook = format!("netfilter hook {} priority {}", self.hook.name(), self.priority);
        if let Some(program) = self.program {
            found.add_program(program, &hook, DROPS);
        }
        if let Some(name) =
            self.name.as_ref().filter(|name| name.starts_with("ip_vs_") || name.starts_with("ila_"))
        {
            found.not_evaluated(format!("function {name} at {hook} is not evaluated"));
        }
    }
}

/// The functions at the hooks of both IP versions; `None` where the kernel does not list them.
fn functions() -> Result<Option<Vec<Function>>, Errno> {
    let Ok(mut socket) = Socket::open(SockProtocol::NetlinkNetFilter) else { return Ok(None) };
    let mut functions = Vec::new();
    let mut sequence = 0;
    for family in Family::ALL {
        for (number, hook) in (0..).zip(Hook::ALL) {
            sequence += 1;
            let mut writer = Writer::with_capacity(64);
            let header = Header { kind: NFNL_SUBSYS_HOOK << 8, flags: REQUEST | DUMP, sequence };
            writer.message(header, &[family.number(), 0, 0, 0], |w| w.be32(NFNLA_HOOK_HOOKNUM, number));
            match socket.list(&writer.finish().unwrap_or_default(), sequence, Limit::entries(MOST_FUNCTIONS))
            {
                Ok(Listed::Whole(entries)) => {
                    functions.extend(entries.iter().filter_map(|entry| function(hook, entry)));
                }
                // No such subsystem (`nfnetlink_rcv_msg`).
                Ok(Listed::Refused(Errno::EINVAL | Errno::EOPNOTSUPP)) => return Ok(None),
                Ok(Listed::Refused(why)) => return Err(why),
                Ok(Listed::TooLarge) => return Err(Errno::E2BIG),
                Ok(Listed::Changed | Listed::Unknown(_)) | Err(_) => return Err(Errno::EAGAIN),
            }
        }
    }
    Ok(Some(functions))
}

fn function(hook: Hook, entry: &[u8]) -> Option<Function> {
    let attributes = Attributes::of(entry.get(GENERIC..)?);
    let chain = attributes.get(NFNLA_HOOK_CHAIN_INFO);
    let is_program = chain.and_then(|chain| nested(chain, NFNLA_HOOK_INFO_TYPE)?.be32()) == Some(TYPE_BPF);
    let program = chain
        .filter(|_| is_program)
        .and_then(|chain| nested(nested(chain, NFNLA_HOOK_INFO_DESC)?, NFNLA_HOOK_BPF_ID)?.be32());
    Some(Function {
        hook,
        priority: attributes.be32(NFNLA_HOOK_PRIORITY)?.cast_signed(),
        name: attributes.name(NFNLA_HOOK_FUNCTION_NAME),
        program,
    })
}

pub(super) fn name_in(entry: &[u8]) -> Option<String> {
    function(Hook::Output, entry)?.name
}

fn nested(attribute: Attribute<'_>, kind: u16) -> Option<Attribute<'_>> {
    Attributes::of(attribute.value).get(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(priority: i32, name: &str, program: Option<u32>) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.text(NFNLA_HOOK_FUNCTION_NAME, name);
        writer.be32(NFNLA_HOOK_PRIORITY, priority.cast_unsigned());
        if let Some(id) = program {
            writer.nested(NFNLA_HOOK_CHAIN_INFO, |w| {
                w.nested(NFNLA_HOOK_INFO_DESC, |w| w.be32(NFNLA_HOOK_BPF_ID, id));
                w.be32(NFNLA_HOOK_INFO_TYPE, TYPE_BPF);
            });
        }
        [vec![Family::V4.number(), 0, 0, 0], writer.finish().unwrap()].concat()
    }

    #[test]
    fn programs_and_ipvs_are_named_and_other_functions_are_not() {
        let mut found = Programs::default();
        for (priority, name, program) in [
            (-200, "ipv4_conntrack_local", None),
            (-100, "nf_nat_ipv4_local_fn", None),
            (-98, "ip_vs_out_hook", None),
            (10, "nf_hook_run_bpf", Some(u32::MAX)),
        ] {
            function(Hook::Output, &entry(priority, name, program)).unwrap().add_to(&mut found);
        }
        let [ipvs, program] = &found.diverting[..] else { panic!("{found:?}") };
        assert_eq!(ipvs, "function ip_vs_out_hook at netfilter hook output priority -98 is not evaluated");
        assert!(program.ends_with("at netfilter hook output priority 10 may drop connections"), "{program}");
    }
}
