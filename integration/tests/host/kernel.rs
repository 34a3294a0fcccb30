//! A simulated kernel without nf_tables: a seccomp filter refuses netfilter's netlink sockets to one thread and its
//! children, with the error of such a kernel.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use std::thread;

/// linux/netlink.h, linux/socket.h.
const AF_NETLINK: u64 = 16;
const NETLINK_NETFILTER: u64 = 12;

/// Runs `work` on a new thread with the filter; a seccomp filter cannot be removed from a thread.
pub(crate) fn without_nf_tables<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            seccompiler::apply_filter(&filter()).unwrap();
            work()
        });
        there.join().unwrap()
    })
}

/// Makes `socket(AF_NETLINK, _, NETLINK_NETFILTER)` fail with EPROTONOSUPPORT, which `netlink_create` returns for an
/// unregistered protocol (net/netlink/af_netlink.c, v6.18).
fn filter() -> BpfProgram {
    let is = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap()
    };
    let rule = SeccompRule::new(vec![is(0, AF_NETLINK), is(2, NETLINK_NETFILTER)]).unwrap();
    let refuse = SeccompAction::Errno(nix::errno::Errno::EPROTONOSUPPORT as u32);
    let arch: TargetArch = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(nix::libc::SYS_socket, vec![rule])].into_iter().collect();
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap().try_into().unwrap()
}
