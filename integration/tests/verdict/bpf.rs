//! eBPF programs of a few instructions, loaded and attached by bpf(2). A link detaches its program when it is
//! closed.

use nix::errno::Errno;
use nix::libc;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const LINK_CREATE: libc::c_int = 28;

/// Type and attach type of a program: `BPF_PROG_TYPE_*`, `BPF_*` of `enum bpf_attach_type`
/// (include/uapi/linux/bpf.h, v6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) program: u32,
    pub(crate) attach: u32,
}

pub(crate) const CONNECT4: Kind = Kind { program: 18, attach: 10 };
pub(crate) const SENDMSG4: Kind = Kind { program: 18, attach: 14 };
pub(crate) const SOCK_CREATE: Kind = Kind { program: 9, attach: 2 };
pub(crate) const SOCK_OPS: Kind = Kind { program: 13, attach: 3 };
pub(crate) const GETSOCKOPT: Kind = Kind { program: 25, attach: 21 };
pub(crate) const CGROUP_EGRESS: Kind = Kind { program: 8, attach: 1 };
pub(crate) const POST_BIND4: Kind = Kind { program: 9, attach: 12 };
pub(crate) const SK_LOOKUP: Kind = Kind { program: 30, attach: 36 };
pub(crate) const TCX_INGRESS: Kind = Kind { program: 3, attach: 46 };
pub(crate) const CLASSIFIER: Kind = Kind { program: 3, attach: 0 };
pub(crate) const XDP: Kind = Kind { program: 6, attach: 37 };
pub(crate) const NETFILTER: Kind = Kind { program: 32, attach: 45 };

/// An instruction: `struct bpf_insn`.
pub(crate) type Instruction = [u8; 8];

/// `r<to> = value`.
pub(crate) fn set(to: u8, value: u32) -> Instruction {
    let [a, b, c, d] = value.to_ne_bytes();
    [0xb4, to, 0, 0, a, b, c, d]
}

/// `*(u32 *)(r1 + offset) = r<from>`: a field of the context.
pub(crate) fn store(offset: u8, from: u8) -> Instruction {
    [0x63, from << 4 | 1, offset, 0, 0, 0, 0, 0]
}

/// Ends the program with r0.
pub(crate) const EXIT: Instruction = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// A program that does nothing but return this.
pub(crate) fn returning(value: u32) -> Vec<Instruction> {
    vec![set(0, value), EXIT]
}

/// Loads a program under this name.
pub(crate) fn load(kind: Kind, name: &str, code: &[Instruction]) -> Result<OwnedFd, Errno> {
    let code = code.concat();
    let license = c"Apache-2.0";
    let mut attributes = [0; 72];
    put(&mut attributes, 0, kind.program);
    put(&mut attributes, 4, u32::try_from(code.len() / 8).unwrap());
    put_address(&mut attributes, 8, code.as_ptr());
    put_address(&mut attributes, 16, license.as_ptr().cast());
    attributes[48..48 + name.len()].copy_from_slice(name.as_bytes());
    put(&mut attributes, 68, kind.attach);
    bpf(PROG_LOAD, &mut attributes).map(owned)
}

/// Attaches a program to a cgroup or network namespace (a descriptor) or an interface (its index).
pub(crate) fn link(program: &OwnedFd, kind: Kind, target: u32) -> Result<OwnedFd, Errno> {
    // XDP in generic mode, which every interface has (`XDP_FLAGS_SKB_MODE`).
    let flags = if kind == XDP { 2 } else { 0 };
    link_with(program, kind, [target, flags], [0; 4])
}

/// Attaches a program to netfilter's hook output of IPv4 in the calling thread's namespace.
pub(crate) fn link_at_output(program: &OwnedFd) -> Result<OwnedFd, Errno> {
    link_with(program, NETFILTER, [0, 0], [2, 3, 50, 0])
}

fn link_with(
    program: &OwnedFd,
    kind: Kind,
    [target, flags]: [u32; 2],
    more: [u32; 4],
) -> Result<OwnedFd, Errno> {
    let mut attributes = [0; 48];
    let program = u32::try_from(program.as_raw_fd()).unwrap();
    for (place, value) in [program, target, kind.attach, flags].into_iter().chain(more).enumerate() {
        put(&mut attributes, 4 * place, value);
    }
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

/// Gives a program a path in a bpf file system.
pub(crate) fn pin(program: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut attributes = [0; 16];
    put_address(&mut attributes, 0, path.as_ptr().cast());
    put(&mut attributes, 8, u32::try_from(program.as_raw_fd()).unwrap());
    bpf(OBJ_PIN, &mut attributes).map(drop)
}

fn put(attributes: &mut [u8], at: usize, value: u32) {
    attributes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put_address(attributes: &mut [u8], at: usize, address: *const u8) {
    let address = u64::try_from(address.expose_provenance()).unwrap();
    attributes[at..at + 8].copy_from_slice(&address.to_ne_bytes());
}

#[expect(unsafe_code, reason = "no crate here wraps bpf(2)")]
fn bpf(command: libc::c_int, attributes: &mut [u8]) -> Result<libc::c_int, Errno> {
    // SAFETY: the kernel reads and writes `attributes` within their length, and only reads what their addresses
    // point to: values of the callers above, which outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), attributes.len()) };
    Ok(libc::c_int::try_from(Errno::result(done)?).unwrap())
}

#[expect(unsafe_code, reason = "a descriptor that bpf(2) returned becomes an owned one")]
fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the call succeeded, so the number is a new descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
