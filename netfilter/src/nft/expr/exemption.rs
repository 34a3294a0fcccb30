//! The expressions of the exemption of the kubelet's probes (`nft::exemption`).

use super::wire::{Expressions, PacketField};
use crate::kernel::netlink::attr::{Writer, octets};
use crate::kernel::uapi::*;
use crate::model::exemption::KubeletCgroup;
use crate::model::ruleset::{Family, Transport};
use std::net::IpAddr;

/// The label of the kubelet's connections to ambient pods: bit 127 of 128, as libnetfilter_conntrack numbers them.
const LABEL: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];

/// Labels TCP connections that sockets of the cgroup open to the pods of the set.
pub(in crate::nft) fn label(w: &mut Writer, family: Family, set: &str, cgroup: KubeletCgroup) {
    let mut out = Expressions(w);
    to_pods(&mut out, family, set);
    out.load_cgroup(cgroup.level);
    out.compare(NFT_CMP_EQ, &cgroup.id.to_ne_bytes());
    out.count();
    out.load_value(&LABEL);
    // Sets the bits of the value and keeps the others (`nft_ct_set_eval`, net/netfilter/nft_ct.c, v6.18).
    out.store_ct(NFT_CT_LABELS);
}

/// Translates the source of TCP connections to the pods of the set that have the label.
pub(in crate::nft) fn translate_labelled(w: &mut Writer, family: Family, set: &str, source: IpAddr) {
    let mut out = Expressions(w);
    to_pods(&mut out, family, set);
    out.load_ct(NFT_CT_LABELS);
    out.mask(&LABEL);
    out.compare(NFT_CMP_EQ, &LABEL);
    translate(&mut out, family, source);
}

/// Translates the source of TCP connections that root's sockets open to the pods of the set.
pub(in crate::nft) fn translate_roots(w: &mut Writer, family: Family, set: &str, source: IpAddr) {
    let mut out = Expressions(w);
    to_pods(&mut out, family, set);
    out.load_meta(NFT_META_SKUID);
    out.compare(NFT_CMP_EQ, &0_u32.to_ne_bytes());
    translate(&mut out, family, source);
}

fn to_pods(out: &mut Expressions<'_>, family: Family, set: &str) {
    out.load_meta(NFT_META_L4PROTO);
    out.compare(NFT_CMP_EQ, &[Transport::Tcp.number()]);
    out.load_meta(NFT_META_NFPROTO);
    out.compare(NFT_CMP_EQ, &[family.number()]);
    let (offset, length) = match family {
        Family::V4 => (16, 4),
        Family::V6 => (24, 16),
    };
    out.load_packet(PacketField { base: NFT_PAYLOAD_NETWORK_HEADER, offset, length });
    out.look_up(set, 0);
}

fn translate(out: &mut Expressions<'_>, family: Family, source: IpAddr) {
    out.count();
    out.load_value(&octets(source));
    out.translate_source(family.number());
}
