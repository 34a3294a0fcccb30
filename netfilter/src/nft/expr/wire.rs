//! The attributes of each nftables expression, in the order in which the kernel dumps them.
//!
//! CHECK needs that order: it compares the dumped expressions with the written ones byte for byte. Source: the
//! `*_dump` function of `net/netfilter/nft_NAME.c`.

use crate::kernel::netlink::attr::Writer;
use crate::kernel::uapi::*;

/// Writes the expressions of one rule. All of them use register 1, as those of `nft` do.
pub(super) struct Expressions<'w>(pub(super) &'w mut Writer);

/// A field of a packet header.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketField {
    /// `NFT_PAYLOAD_NETWORK_HEADER` or `_TRANSPORT_HEADER`.
    pub(super) base: u32,
    /// Offset from the start of that header, in bytes.
    pub(super) offset: u32,
    /// Length in bytes.
    pub(super) length: u32,
}

impl Expressions<'_> {
    fn expression(&mut self, name: &str, content: impl FnOnce(&mut Writer)) {
        self.0.nested(NFTA_LIST_ELEM, |w| {
            w.text(NFTA_EXPR_NAME, name);
            w.nested(NFTA_EXPR_DATA, content);
        });
    }

    /// Writes an expression of numbers alone.
    fn numbers(&mut self, name: &str, attributes: &[(u16, u32)]) {
        self.expression(name, |w| attributes.iter().for_each(|(kind, number)| w.be32(*kind, *number)));
    }

    pub(super) fn load_meta(&mut self, key: u32) {
        self.numbers("meta", &[(NFTA_META_KEY, key), (NFTA_META_DREG, NFT_REG_1)]);
    }

    pub(super) fn store_meta(&mut self, key: u32) {
        self.numbers("meta", &[(NFTA_META_KEY, key), (NFTA_META_SREG, NFT_REG_1)]);
    }

    pub(super) fn load_ct(&mut self, key: u32) {
        self.numbers("ct", &[(NFTA_CT_DREG, NFT_REG_1), (NFTA_CT_KEY, key)]);
    }

    pub(super) fn store_ct(&mut self, key: u32) {
        self.numbers("ct", &[(NFTA_CT_SREG, NFT_REG_1), (NFTA_CT_KEY, key)]);
    }

    /// Loads the inode of the cgroup at this level above the socket.
    pub(super) fn load_cgroup(&mut self, level: u32) {
        self.numbers(
            "socket",
            &[
                (NFTA_SOCKET_KEY, NFT_SOCKET_CGROUPV2),
                (NFTA_SOCKET_DREG, NFT_REG_1),
                (NFTA_SOCKET_LEVEL, level),
            ],
        );
    }

    pub(super) fn load_packet(&mut self, field: PacketField) {
        self.numbers(
            "payload",
            &[
                (NFTA_PAYLOAD_DREG, NFT_REG_1),
                (NFTA_PAYLOAD_BASE, field.base),
                (NFTA_PAYLOAD_OFFSET, field.offset),
                (NFTA_PAYLOAD_LEN, field.length),
            ],
        );
    }

    pub(super) fn compare(&mut self, operator: u32, value: &[u8]) {
        self.expression("cmp", |w| {
            w.be32(NFTA_CMP_SREG, NFT_REG_1);
            w.be32(NFTA_CMP_OP, operator);
            w.nested(NFTA_CMP_DATA, |w| w.attr(NFTA_DATA_VALUE, value));
        });
    }

    pub(super) fn compare_outside(&mut self, first: &[u8], last: &[u8]) {
        self.expression("range", |w| {
            w.be32(NFTA_RANGE_SREG, NFT_REG_1);
            w.be32(NFTA_RANGE_OP, NFT_RANGE_NEQ);
            w.nested(NFTA_RANGE_FROM_DATA, |w| w.attr(NFTA_DATA_VALUE, first));
            w.nested(NFTA_RANGE_TO_DATA, |w| w.attr(NFTA_DATA_VALUE, last));
        });
    }

    pub(super) fn mask(&mut self, mask: &[u8]) {
        const ZEROS: [u8; 16] = [0; 16];
        self.replace_bits(mask, ZEROS.get(..mask.len()).unwrap_or_default());
    }

    /// Keeps the bits of `kept` and flips those of `flipped`, which is as long.
    pub(super) fn replace_bits(&mut self, kept: &[u8], flipped: &[u8]) {
        self.expression("bitwise", |w| {
            w.be32(NFTA_BITWISE_SREG, NFT_REG_1);
            w.be32(NFTA_BITWISE_DREG, NFT_REG_1);
            // A register has 16 bytes.
            w.be32(NFTA_BITWISE_LEN, u32::try_from(kept.len()).unwrap_or(u32::MAX));
            w.be32(NFTA_BITWISE_OP, 0);
            w.nested(NFTA_BITWISE_MASK, |w| w.attr(NFTA_DATA_VALUE, kept));
            w.nested(NFTA_BITWISE_XOR, |w| w.attr(NFTA_DATA_VALUE, flipped));
        });
    }

    pub(super) fn look_up(&mut self, set: &str, flags: u32) {
        self.expression("lookup", |w| {
            w.text(NFTA_LOOKUP_SET, set);
            w.be32(NFTA_LOOKUP_SREG, NFT_REG_1);
            w.be32(NFTA_LOOKUP_FLAGS, flags);
        });
    }

    pub(super) fn load_value(&mut self, value: &[u8]) {
        self.expression("immediate", |w| {
            w.be32(NFTA_IMMEDIATE_DREG, NFT_REG_1);
            w.nested(NFTA_IMMEDIATE_DATA, |w| w.attr(NFTA_DATA_VALUE, value));
        });
    }

    pub(super) fn verdict(&mut self, code: u32, chain: Option<&str>) {
        self.expression("immediate", |w| {
            w.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            w.nested(NFTA_IMMEDIATE_DATA, |w| {
                w.nested(NFTA_DATA_VERDICT, |w| {
                    w.be32(NFTA_VERDICT_CODE, code);
                    if let Some(chain) = chain {
                        w.text(NFTA_VERDICT_CHAIN, chain);
                    }
                });
            });
        });
    }

    /// Writes a counter at zero.
    pub(super) fn count(&mut self) {
        self.expression("counter", |w| {
            w.attr(NFTA_COUNTER_BYTES, &[0; 8]);
            w.attr(NFTA_COUNTER_PACKETS, &[0; 8]);
        });
    }

    /// Redirects to the port in register 1. Writes both ends of the port range: the kernel would add a missing end,
    /// and the dump would differ from the written bytes.
    pub(super) fn redirect(&mut self) {
        self.numbers(
            "redir",
            &[
                (NFTA_REDIR_REG_PROTO_MIN, NFT_REG_1),
                (NFTA_REDIR_REG_PROTO_MAX, NFT_REG_1),
                (NFTA_REDIR_FLAGS, NF_NAT_RANGE_PROTO_SPECIFIED),
            ],
        );
    }

    /// Translates the source to the address in register 1. Writes both ends of the range and the flag, as
    /// [`Expressions::redirect`] does.
    pub(super) fn translate_source(&mut self, family: u8) {
        self.numbers(
            "nat",
            &[
                (NFTA_NAT_TYPE, NFT_NAT_SNAT),
                (NFTA_NAT_FAMILY, u32::from(family)),
                (NFTA_NAT_REG_ADDR_MIN, NFT_REG_1),
                (NFTA_NAT_REG_ADDR_MAX, NFT_REG_1),
                (NFTA_NAT_FLAGS, NF_NAT_RANGE_MAP_IPS),
            ],
        );
    }

    /// Delivers to the transparent socket on the port in register 1.
    pub(super) fn intercept(&mut self, family: u8) {
        self.numbers("tproxy", &[(NFTA_TPROXY_FAMILY, u32::from(family)), (NFTA_TPROXY_REG_PORT, NFT_REG_1)]);
    }
}
