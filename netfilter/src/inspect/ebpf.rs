//! The eBPF programs that can change the outcome of a pod's connections, and that no list of rules shows: at the
//! cgroups of its processes, at the interfaces of its network namespace, and at netfilter's hooks.
//!
//! Programs are not evaluated: the hook alone decides how a program is reported. At most hooks the kernel lets a
//! program choose another address, device, mark or socket: with such a program the outcome of a connection is unknown.
//! At the other hooks a program can only pass or drop packets: it is reported, and the outcome stays known. Only reads.
//!
//! `bpf` contains the system call, `interfaces` reads what is attached to interfaces, `hooks` netfilter's hooks.

mod bpf;
mod hooks;
mod interfaces;

use crate::kernel::netns::Netns;
use crate::kernel::routes::Rtnetlink;
use bpf::AttachPoint;
use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// How many sentences of one kind are kept: a process in the namespace may attach any number of programs.
const NAMED: usize = 100;

/// The programs that were found, one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Programs {
    /// Programs that may send a connection elsewhere.
    pub diverting: Vec<String>,
    /// Programs that can only pass or drop.
    pub filtering: Vec<String>,
    /// What could not be read, with the reason.
    pub not_read: Vec<String>,
}

impl Programs {
    /// Adds the programs of `more` that are not yet in the lists, up to a hundred of each kind.
    pub fn add(&mut self, more: Self) {
        for (list, more) in [
            (&mut self.diverting, more.diverting),
            (&mut self.filtering, more.filtering),
            (&mut self.not_read, more.not_read),
        ] {
            for sentence in more {
                if list.len() < NAMED && !list.contains(&sentence) {
                    list.push(sentence);
                }
            }
        }
    }

    /// Adds what may send a connection elsewhere.
    fn not_evaluated(&mut self, sentence: String) {
        self.add(Self { diverting: vec![sentence], ..Self::default() });
    }

    /// Adds that the programs `position` (such as "at tcx") cannot be read.
    fn cannot_read(&mut self, position: &str, why: Errno) {
        let needs = match why {
            Errno::EPERM => "; it takes CAP_SYS_ADMIN in the first user namespace",
            _ => "",
        };
        let sentence = format!("eBPF programs {position} could not be read: {}{needs}", why.desc());
        self.add(Self { not_read: vec![sentence], ..Self::default() });
    }
}

/// What a program may do at its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramEffect {
    /// It may send a connection elsewhere.
    Diverts(&'static str),
    /// It can only pass or drop.
    Filters(&'static str),
}

/// A hook of a cgroup.
struct CgroupHook {
    /// `enum bpf_attach_type` (include/uapi/linux/bpf.h, v6.18).
    attach_type: u32,
    /// As bpftool names it.
    name: &'static str,
    effect: ProgramEffect,
}

const fn hook(attach_type: u32, name: &'static str, effect: ProgramEffect) -> CgroupHook {
    CgroupHook { attach_type, name, effect }
}

const DESTINATION: ProgramEffect = ProgramEffect::Diverts("may choose another destination");
const SOURCE: ProgramEffect = ProgramEffect::Diverts("may choose another source");
const ORIGINAL: ProgramEffect =
    ProgramEffect::Diverts("may change the original destination that the proxy reads");
const DROPS: ProgramEffect = ProgramEffect::Filters("may drop packets");
const REFUSES: ProgramEffect = ProgramEffect::Filters("may refuse a bind");

/// The hooks that see a pod's connections. What a program may write is in net/core/filter.c (v6.18):
/// `sock_addr_is_valid_access` for connect, sendmsg, bind and getsockname, `sock_filter_is_valid_access` for
/// sock_create (device, mark), `cg_skb_is_valid_access` for cgroup_skb (a mark, behind every hook of the
/// direction). `sock_ops` may put sockets into a sockmap, which takes their data past the network stack. Not listed:
/// device and sysctl, which see no connection; recvmsg and getpeername, which change what an application reads
/// of its peer; sock_release, which runs when a socket ends.
const CGROUP_HOOKS: [CgroupHook; 17] = [
    hook(10, "connect4", DESTINATION),
    hook(11, "connect6", DESTINATION),
    hook(14, "sendmsg4", DESTINATION),
    hook(15, "sendmsg6", DESTINATION),
    hook(8, "bind4", SOURCE),
    hook(9, "bind6", SOURCE),
    hook(2, "sock_create", ProgramEffect::Diverts("may choose the device and the mark of a socket")),
    hook(3, "sock_ops", ProgramEffect::Diverts("may move a connection's data to another socket")),
    hook(22, "setsockopt", ProgramEffect::Diverts("may change the options of a socket")),
    hook(21, "getsockopt", ORIGINAL),
    hook(31, "getsockname4", ORIGINAL),
    hook(32, "getsockname6", ORIGINAL),
    hook(43, "lsm_cgroup", ProgramEffect::Diverts("may change the options of a socket")),
    hook(0, "cgroup_inet_ingress", DROPS),
    hook(1, "cgroup_inet_egress", DROPS),
    hook(12, "post_bind4", REFUSES),
    hook(13, "post_bind6", REFUSES),
];

/// `BPF_SK_LOOKUP`: chooses the socket of a connection that arrives.
const SK_LOOKUP: u32 = 36;

/// Reads the programs that run for the sockets of a cgroup (v2): those of the cgroup and of its ancestors.
#[must_use]
pub fn of_cgroup(cgroup: BorrowedFd<'_>) -> Programs {
    let mut found = Programs::default();
    for CgroupHook { attach_type, name, effect } in CGROUP_HOOKS {
        match bpf::programs_at(AttachPoint::EffectiveIn(cgroup), attach_type) {
            Ok(ids) => {
                ids.into_iter().for_each(|id| found.add_program(id, &format!("cgroup hook {name}"), effect));
            }
            // A kernel that does not have this hook.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {}
            // A kernel built without CONFIG_BPF_SYSCALL has no programs.
            Err(Errno::ENOSYS) => return Programs::default(),
            Err(why) => {
                found.cannot_read("of the pod's cgroups", why);
                return found;
            }
        }
    }
    found
}

/// Reads the programs at the calling thread's network namespace.
pub(crate) fn of_this_namespace(routing: &mut Rtnetlink) -> Programs {
    let mut found = Programs::default();
    interfaces::read(routing, &mut found);
    hooks::read(&mut found);
    let sk_lookup = Netns::of_this_thread()
        .map_err(|_| Errno::ENOENT)
        .and_then(|netns| bpf::programs_at(AttachPoint::Netns(netns.as_fd()), SK_LOOKUP));
    match sk_lookup {
        Ok(ids) => {
            let effect = ProgramEffect::Diverts("may choose another socket for a connection that arrives");
            ids.into_iter()
                .for_each(|id| found.add_program(id, "sk_lookup of the network namespace", effect));
        }
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
        Err(why) => found.cannot_read("at sk_lookup", why),
    }
    found
}

impl Programs {
    /// Adds a program that is attached to `hook`.
    fn add_program(&mut self, id: u32, hook: &str, effect: ProgramEffect) {
        let name = bpf::name_of(id).unwrap_or_default();
        let is_of_cilium = name.starts_with("cil_") && effect == DESTINATION;
        let remedy = match is_of_cilium {
            true => " (Cilium's socket load balancing: set its Helm value socketLB.hostNamespaceOnly=true)",
            false => "",
        };
        let program = match name.as_str() {
            "" => format!("eBPF program id {id}"),
            name => format!("eBPF program {name} (id {id})"),
        };
        let sentence = |may: &str| vec![format!("{program} at {hook} {may}{remedy}")];
        self.add(match effect {
            ProgramEffect::Diverts(may) => Self { diverting: sentence(may), ..Self::default() },
            ProgramEffect::Filters(may) => Self { filtering: sentence(may), ..Self::default() },
        });
    }
}

/// The names in an entry of any list that is read here.
pub(crate) fn names_in(entry: &[u8]) -> Vec<String> {
    [
        hooks::name_in(entry),
        interfaces::discipline_in(entry),
        interfaces::filter_in(entry),
        bpf::name_in(entry),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Converts a file descriptor to the type that bpf(2) takes.
fn raw(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}
