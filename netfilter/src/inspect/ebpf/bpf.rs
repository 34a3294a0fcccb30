//! bpf(2), as far as programs and links are listed and named. nix has no wrapper: hence the unsafe calls.
//!
//! Numbers and structures: include/uapi/linux/bpf.h, v6.18. The kernel takes an attribute block that is longer
//! than the one it knows, when the rest is zero (`bpf_check_uarg_tail_zero`).

use super::raw;
use nix::errno::Errno;
use nix::libc;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const LINK_GET_FD_BY_ID: libc::c_int = 30;
const LINK_GET_NEXT_ID: libc::c_int = 31;

/// `BPF_F_QUERY_EFFECTIVE`: also the programs of the ancestors.
const EFFECTIVE: u32 = 1;
/// `BPF_LINK_TYPE_NETFILTER`.
const NETFILTER: u32 = 10;

/// How many programs of one hook are read. One cgroup has at most 64 (`BPF_CGROUP_MAX_PROGS`).
const MOST_PROGRAMS: usize = 256;
/// How many links of a node are looked at.
const MOST_LINKS: usize = 10_000;

/// What programs are attached to.
#[derive(Debug, Clone, Copy)]
pub(super) enum AttachPoint<'f> {
    /// A cgroup and its ancestors.
    EffectiveIn(BorrowedFd<'f>),
    /// A network namespace.
    Netns(BorrowedFd<'f>),
    /// The interface with this index in the calling thread's network namespace.
    Interface(u32),
}

/// A program at a netfilter hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NetfilterLink {
    pub(super) program: u32,
    pub(super) hook: u32,
    pub(super) priority: i32,
}

/// The ids of the programs at `target`, in the order in which they run.
pub(super) fn programs_at(target: AttachPoint<'_>, attach_type: u32) -> Result<Vec<u32>, Errno> {
    let (target, flags) = match target {
        AttachPoint::EffectiveIn(cgroup) => (raw(cgroup), EFFECTIVE),
        AttachPoint::Netns(netns) => (raw(netns), 0),
        AttachPoint::Interface(index) => (index, 0),
    };
    // The attributes of `BPF_PROG_QUERY`: the address of the ids at 16, their count at 24.
    let mut attributes = [0; 64];
    let most = u32::try_from(MOST_PROGRAMS).unwrap_or_default();
    for (at, value) in [(0, target), (4, attach_type), (8, flags), (24, most)] {
        put(&mut attributes, at, &value.to_ne_bytes());
    }
    let mut ids = [0; 4 * MOST_PROGRAMS];
    match call(PROG_QUERY, &mut attributes, Some(Output { address_at: 16, bytes: &mut ids })) {
        // More programs than there is room for: the first are there.
        Ok(_) | Err(Errno::ENOSPC) => {}
        Err(why) => return Err(why),
    }
    let count = usize::try_from(number(&attributes, 24)).unwrap_or(MOST_PROGRAMS);
    Ok((0..count.min(MOST_PROGRAMS)).map(|index| number(&ids, 4 * index)).collect())
}

/// The name that its loader gave a program, at most 15 characters of printable ASCII; none without
/// CAP_SYS_ADMIN, and for a program that is gone.
pub(super) fn name_of(program: u32) -> Option<String> {
    let fd = open(PROG_GET_FD_BY_ID, program).ok()?;
    // `struct bpf_prog_info` up to the end of its name.
    let mut info = [0; 80];
    info_of(fd.as_fd(), &mut info).ok()?;
    name_in(&info)
}

/// The name in the kernel's description of a program.
pub(super) fn name_in(info: &[u8]) -> Option<String> {
    let name = info.get(64..80)?.split(|byte| *byte == 0).next()?;
    Some(name.escape_ascii().to_string()).filter(|name| !name.is_empty())
}

/// The programs at netfilter hooks, of every network namespace of the machine: a link does not report its
/// namespace (`bpf_nf_link_fill_link_info`, net/netfilter/nf_bpf_link.c, v6.18).
pub(super) fn netfilter_links() -> Result<Vec<NetfilterLink>, Errno> {
    let (mut links, mut last) = (Vec::new(), 0);
    for _ in 0..MOST_LINKS {
        let mut attributes = [0; 16];
        put(&mut attributes, 0, &u32::to_ne_bytes(last));
        match call(LINK_GET_NEXT_ID, &mut attributes, None) {
            Ok(_) => last = number(&attributes, 4),
            Err(Errno::ENOENT) => break,
            Err(why) => return Err(why),
        }
        // A link that is gone by now.
        let Ok(fd) = open(LINK_GET_FD_BY_ID, last) else { continue };
        // `struct bpf_link_info`: type, id, program; at 16 family, hook and priority.
        let mut info = [0; 32];
        if info_of(fd.as_fd(), &mut info).is_ok() && number(&info, 0) == NETFILTER {
            let (program, hook) = (number(&info, 8), number(&info, 20));
            links.push(NetfilterLink { program, hook, priority: number(&info, 24).cast_signed() });
        }
    }
    Ok(links)
}

fn info_of(fd: BorrowedFd<'_>, info: &mut [u8]) -> Result<(), Errno> {
    let mut attributes = [0; 16];
    let length = u32::try_from(info.len()).unwrap_or_default();
    put(&mut attributes, 0, &raw(fd).to_ne_bytes());
    put(&mut attributes, 4, &length.to_ne_bytes());
    call(OBJ_GET_INFO_BY_FD, &mut attributes, Some(Output { address_at: 8, bytes: info })).map(drop)
}

#[expect(unsafe_code, reason = "a descriptor that bpf(2) returned becomes an owned one")]
fn open(command: libc::c_int, id: u32) -> Result<OwnedFd, Errno> {
    let mut attributes = [0; 16];
    put(&mut attributes, 0, &id.to_ne_bytes());
    let fd = call(command, &mut attributes, None)?;
    // SAFETY: the call succeeded, so the number is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Where the kernel writes more than fits into the attributes.
struct Output<'b> {
    /// The offset of its address in the attributes.
    address_at: usize,
    bytes: &'b mut [u8],
}

#[expect(unsafe_code, reason = "nix has no bpf(2)")]
fn call(
    command: libc::c_int,
    attributes: &mut [u8],
    output: Option<Output<'_>>,
) -> Result<libc::c_int, Errno> {
    if let Some(output) = output {
        let address = output.bytes.as_mut_ptr().expose_provenance();
        put(attributes, output.address_at, &u64::try_from(address).unwrap_or_default().to_ne_bytes());
    }
    // SAFETY: the kernel reads and writes `attributes` within the length that is passed. The one address in them
    // is that of a buffer which outlives the call, and the callers pass its length too.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), attributes.len()) };
    let done = Errno::result(done)?;
    libc::c_int::try_from(done).map_err(|_| Errno::EOVERFLOW)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u32::from_ne_bytes(*field))
}
