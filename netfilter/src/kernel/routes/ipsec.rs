//! The IPsec policies of a namespace: which of the packets that arrive or leave the kernel drops or encrypts.

use crate::kernel::netlink::attr::Writer;
use crate::kernel::netlink::list::{Limit, Listed};
use crate::kernel::netlink::message::{DUMP, Header, REQUEST};
use crate::kernel::netlink::socket::{Socket, SocketError};
use nix::errno::Errno;

/// `XFRM_MSG_GETPOLICY` (include/uapi/linux/xfrm.h, v6.18).
const GET_POLICY: u16 = 0x15;
/// The offset of `dir` in `struct xfrm_userpolicy_info`: after a selector of 56 bytes, two lifetimes of 64 and 32 bytes,
/// priority and index.
const DIRECTION: usize = 160;
/// `XFRM_POLICY_IN` and `XFRM_POLICY_OUT`; the others apply to forwarded packets or to one socket.
const DIRECTIONS: [u8; 2] = [0, 1];

/// More policies are not counted.
const MOST: usize = 1000;

/// The number of policies for packets that arrive at or leave the namespace of the calling thread; none without IPsec
/// in this kernel. Lists them with CAP_NET_ADMIN only.
///
/// # Errors
/// When the kernel does not list them.
pub(crate) fn policies() -> Result<usize, Errno> {
    let mut socket = match Socket::open_xfrm() {
        Err(SocketError::Open { source: Errno::EPROTONOSUPPORT }) => return Ok(0),
        socket => socket.map_err(errno)?,
    };
    let mut writer = Writer::with_capacity(64);
    writer.message(Header { kind: GET_POLICY, flags: REQUEST | DUMP, sequence: 1 }, &[], |_| ());
    match socket.list(&writer.finish().unwrap_or_default(), 1, Limit::entries(MOST)).map_err(errno)? {
        Listed::Whole(policies) => Ok(policies
            .iter()
            .filter(|policy| policy.get(DIRECTION).is_some_and(|to| DIRECTIONS.contains(to)))
            .count()),
        Listed::Refused(source) => Err(source),
        Listed::TooLarge => Ok(MOST),
        Listed::Changed | Listed::Unknown(_) => Err(Errno::EAGAIN),
    }
}

fn errno(error: SocketError) -> Errno {
    match error {
        SocketError::Open { source } | SocketError::Send { source, .. } | SocketError::Receive { source } => {
            source
        }
    }
}
