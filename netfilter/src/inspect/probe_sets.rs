//! The sets of istio-cni in the node's network namespace: the addresses of the ambient pods whose probes by the kubelet
//! are exempt. They are sets of nf_tables or of ipset, as its backend is.

use crate::kernel::netlink::attr::{Writer, octets};
use crate::kernel::netlink::message::{ACK, Header, REQUEST};
use crate::kernel::netlink::reply::RequestOutcome;
use crate::kernel::netlink::socket::Socket;
use crate::kernel::uapi::NFPROTO_UNSPEC;
use crate::model::inventory::{Inventory, PartKind};
use crate::model::ruleset::Family;
use crate::nft::dump;
use crate::nft::socket::NftSocket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use std::net::IpAddr;

const TABLE: &str = "istio-ambient-nat";

/// Returns the families of which the sets in the calling thread's namespace have none of these addresses of a pod. A
/// family without a set, or without an address, is not among them.
pub fn families_not_exempt(pod: &[IpAddr]) -> Vec<Family> {
    // A kernel without nf_tables has no such set.
    let table = NftSocket::open().and_then(|mut nft| dump::inventory_of(TABLE, &mut nft)).unwrap_or_default();
    let is_exempt = |family| {
        let found = pod.iter().filter(move |address| Family::of(**address) == family);
        found.flat_map(|address| [in_table(&table, *address), in_ipset(*address)]).flatten().max()
    };
    Family::ALL.into_iter().filter(|family| is_exempt(*family) == Some(false)).collect()
}

/// The name of the set for a family.
pub fn set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "istio-inpod-probes-v4",
        Family::V6 => "istio-inpod-probes-v6",
    }
}

/// Reports whether the set of the table has the address; none without a set.
fn in_table(table: &Inventory, address: IpAddr) -> Option<bool> {
    let name = set_name(Family::of(address));
    let set = table.parts.iter().find(|part| part.kind == PartKind::Set && part.name == name)?;
    Some(set.items.iter().any(|item| item.id.parse() == Ok(address)))
}

// include/uapi/linux/netfilter/nfnetlink.h (v6.18).
const NFNL_SUBSYS_IPSET: u16 = 6;
// include/uapi/linux/netfilter/ipset/ip_set.h (v6.18).
const IPSET_PROTOCOL_MIN: u8 = 6;
const IPSET_CMD_TEST: u16 = 11;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;
// include/uapi/linux/netlink.h (v6.18). ipset requires both (`flag_nested`, `ip_set_attr_netorder`).
const NLA_F_NESTED: u16 = 1 << 15;
const NLA_F_NET_BYTEORDER: u16 = 1 << 14;

/// Reports whether the set of ipset has the address; none without a set (`ENOENT`), or in a kernel without ipset.
fn in_ipset(address: IpAddr) -> Option<bool> {
    let mut writer = Writer::with_capacity(128);
    let header = Header { kind: NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_TEST, flags: REQUEST | ACK, sequence: 1 };
    let family = Family::of(address);
    let kind = match family {
        Family::V4 => IPSET_ATTR_IPADDR_IPV4,
        Family::V6 => IPSET_ATTR_IPADDR_IPV6,
    };
    writer.message(header, &[NFPROTO_UNSPEC, 0, 0, 0], |w| {
        w.attr(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL_MIN]);
        w.text(IPSET_ATTR_SETNAME, set_name(family));
        w.nested(IPSET_ATTR_DATA | NLA_F_NESTED, |w| {
            let octets = octets(address);
            w.nested(IPSET_ATTR_IP | NLA_F_NESTED, |w| w.attr(kind | NLA_F_NET_BYTEORDER, &octets));
        });
    });
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter).ok()?;
    match socket.transact(&writer.finish()?, header.sequence).ok()? {
        RequestOutcome::Done => Some(true),
        // `IPSET_ERR_EXIST`, 4103, is no errno (`ip_set_utest`, net/netfilter/ipset/ip_set_core.c, v6.18).
        RequestOutcome::Refused(refusals) => {
            refusals.iter().any(|refusal| refusal.errno == Errno::UnknownErrno).then_some(false)
        }
        RequestOutcome::Unknown(_) => None,
    }
}
