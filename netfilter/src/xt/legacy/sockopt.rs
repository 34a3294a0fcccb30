//! The two socket options that return a table. They read its name from the buffer that they fill, which
//! nix's `GetSockOpt` has no way to pass in: hence one unsafe call.

use crate::model::ruleset::Family;
use crate::xt::fields::Fields;
use nix::errno::Errno;
use nix::libc;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; the numbers of IPv6 are the same.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// `NF_INET_NUMHOOKS`.
const HOOKS: usize = 5;

/// `struct ipt_getinfo`, `struct ip6t_getinfo`.
pub(super) struct Info {
    /// The hooks that the table has a chain for: bit n for hook n.
    pub hooks: u32,
    /// Where the chain of each hook begins.
    pub begins: [u32; HOOKS],
    /// Where the policy of each hook's chain is.
    pub underflows: [u32; HOOKS],
    /// How long the entries are, in bytes.
    pub size: u32,
}

/// The size of the structure.
const INFO: usize = NAME + 4 + 4 * HOOKS + 4 * HOOKS + 4 + 4;

impl Info {
    /// Reads the structure.
    pub(super) fn read(reply: &[u8]) -> Option<Self> {
        let fields = Fields(reply);
        let offsets = |at: usize| {
            let mut offsets = [0; HOOKS];
            for (hook, offset) in offsets.iter_mut().enumerate() {
                *offset = fields.u32(at + 4 * hook)?;
            }
            Some(offsets)
        };
        let (begins, underflows) = (offsets(NAME + 4)?, offsets(NAME + 4 + 4 * HOOKS)?);
        Some(Self { hooks: fields.u32(NAME)?, begins, underflows, size: fields.u32(INFO - 4)? })
    }
}

pub(super) fn info(socket: BorrowedFd<'_>, family: Family, table: &str) -> Result<Info, Errno> {
    Info::read(&get(socket, family, GET_INFO, request(table, INFO)?)?).ok_or(Errno::EINVAL)
}

/// The entries themselves: `struct ipt_get_entries` less its head. `EAGAIN` when `size` is no longer
/// theirs.
pub(super) fn entries(
    socket: BorrowedFd<'_>,
    family: Family,
    table: &str,
    size: u32,
) -> Result<Vec<u8>, Errno> {
    // Entries are aligned to eight bytes.
    const HEAD: usize = NAME + 8;
    let length = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    let mut request = request(table, HEAD + length)?;
    request.get_mut(NAME..NAME + 4).ok_or(Errno::EINVAL)?.copy_from_slice(&size.to_ne_bytes());
    let mut reply = get(socket, family, GET_ENTRIES, request)?;
    reply.drain(..HEAD);
    Ok(reply)
}

/// A buffer of `length` bytes that begins with the table's name.
fn request(table: &str, length: usize) -> Result<Vec<u8>, Errno> {
    let mut request = vec![0; length];
    match request.get_mut(..table.len()) {
        Some(name) if table.len() < NAME => name.copy_from_slice(table.as_bytes()),
        _ => return Err(Errno::EINVAL),
    }
    Ok(request)
}

#[expect(unsafe_code, reason = "nix's getsockopt passes no bytes in")]
fn get(socket: BorrowedFd<'_>, family: Family, option: i32, mut buffer: Vec<u8>) -> Result<Vec<u8>, Errno> {
    let level = match family {
        Family::V4 => libc::SOL_IP,
        Family::V6 => libc::SOL_IPV6,
    };
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: both pointers are to values that live through the call, and the kernel writes at most
    // `length` bytes (`copy_to_user` after a comparison of `*len`, net/ipv4/netfilter/ip_tables.c), which
    // is the buffer's length.
    let reply = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut length)
    };
    Errno::result(reply).map(|_| buffer)
}
