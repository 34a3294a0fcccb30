//! The expressions of the exemption of the kubelet's probes (`nft::exemption`).

use super::wire::Expressions;
use super::{DESTINATION, Encoder, address_field};
use crate::kernel::netlink::attr::{Writer, octets};
use crate::kernel::uapi::*;
use crate::model::exemption::KubeletCgroup;
use crate::model::ruleset::{Family, Transport};
use std::net::IpAddr;

/// The label of the kubelet's connections to ambient pods: bit 127 of 128, as libnetfilter_conntrack numbers them.
const LABEL: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];

/// Labels TCP connections that sockets of the cgroup open to the pods of the set.
pub(in crate::nft) fn label(w: &mut Writer, family: Family, set: &str, cgroup: KubeletCgroup) {
    let mut out = to_pods(w, family, set);
    out.load_cgroup(cgroup.level);
    out.compare(NFT_CMP_EQ, &cgroup.id.to_ne_bytes());
    out.count();
    out.load_value(&LABEL);
    // Sets the bits of the value and keeps the others (`nft_ct_set_eval`, net/netfilter/nft_ct.c, v6.18).
    out.store_ct(NFT_CT_LABELS);
}

/// Translates the source of TCP connections to the pods of the set that have the label.
pub(in crate::nft) fn translate_labelled(w: &mut Writer, family: Family, set: &str, source: IpAddr) {
    let mut out = to_pods(w, family, set);
    out.load_ct(NFT_CT_LABELS);
    out.mask(&LABEL);
    out.compare(NFT_CMP_EQ, &LABEL);
    translate(&mut out, family, source);
}

/// Translates the source of TCP connections that root's sockets open to the pods of the set.
pub(in crate::nft) fn translate_roots(w: &mut Writer, family: Family, set: &str, source: IpAddr) {
    let mut out = to_pods(w, family, set);
    out.load_meta(NFT_META_SKUID);
    out.compare(NFT_CMP_EQ, &0_u32.to_ne_bytes());
    translate(&mut out, family, source);
}

/// Matches TCP connections to the pods of the set.
fn to_pods<'w>(w: &'w mut Writer, family: Family, set: &str) -> Expressions<'w> {
    let mut encoder = Encoder { out: Expressions(w), family: None, set: None };
    encoder.protocol(Transport::Tcp);
    encoder.family(family);
    encoder.out.load_packet(address_field(DESTINATION, family));
    encoder.out.look_up(set, 0);
    encoder.out
}

fn translate(out: &mut Expressions<'_>, family: Family, source: IpAddr) {
    out.count();
    out.load_value(&octets(source));
    out.translate_source(family.number());
}
