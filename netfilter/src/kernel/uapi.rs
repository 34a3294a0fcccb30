//! The kernel's constants for nf_tables, with the kernel's names: only those that Gybe uses.
//!
//! A section without a header's name is of include/uapi/linux/netfilter/nf_tables.h (v6.18).

// include/uapi/linux/netfilter/nfnetlink.h (v6.18).
/// The subsystem number of nf_tables in `NETLINK_NETFILTER`: the upper byte of a message type.
pub(crate) const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub(crate) const NFNL_MSG_BATCH_BEGIN: u16 = 16;
pub(crate) const NFNL_MSG_BATCH_END: u16 = 17;
/// The multicast group of changes to nf_tables.
pub(crate) const NFNLGRP_NFTABLES: u32 = 7;

pub(crate) const NFT_MSG_NEWTABLE: u16 = 0;
pub(crate) const NFT_MSG_GETTABLE: u16 = 1;
pub(crate) const NFT_MSG_DELTABLE: u16 = 2;
pub(crate) const NFT_MSG_NEWCHAIN: u16 = 3;
pub(crate) const NFT_MSG_GETCHAIN: u16 = 4;
pub(crate) const NFT_MSG_NEWRULE: u16 = 6;
pub(crate) const NFT_MSG_GETRULE: u16 = 7;
pub(crate) const NFT_MSG_NEWSET: u16 = 9;
pub(crate) const NFT_MSG_GETSET: u16 = 10;
pub(crate) const NFT_MSG_NEWSETELEM: u16 = 12;
pub(crate) const NFT_MSG_GETSETELEM: u16 = 13;
pub(crate) const NFT_MSG_DELSETELEM: u16 = 14;
pub(crate) const NFT_MSG_GETFLOWTABLE: u16 = 23;

// include/uapi/linux/netfilter.h (v6.18).
pub(crate) const NFPROTO_UNSPEC: u8 = 0;
pub(crate) const NFPROTO_INET: u8 = 1;

// Verdicts: include/uapi/linux/netfilter.h (v6.18), and nf_tables' own, which are negative.
pub(crate) const NF_DROP: u32 = 0;
pub(crate) const NF_ACCEPT: u32 = 1;
pub(crate) const NFT_CONTINUE: u32 = (-1_i32).cast_unsigned();
pub(crate) const NFT_BREAK: u32 = (-2_i32).cast_unsigned();
pub(crate) const NFT_JUMP: u32 = (-3_i32).cast_unsigned();
pub(crate) const NFT_GOTO: u32 = (-4_i32).cast_unsigned();
pub(crate) const NFT_RETURN: u32 = (-5_i32).cast_unsigned();

pub(crate) const NFTA_LIST_ELEM: u16 = 1;
pub(crate) const NFTA_DATA_VALUE: u16 = 1;
pub(crate) const NFTA_DATA_VERDICT: u16 = 2;
pub(crate) const NFTA_VERDICT_CODE: u16 = 1;
pub(crate) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(crate) const NFTA_TABLE_NAME: u16 = 1;
pub(crate) const NFTA_TABLE_FLAGS: u16 = 2;
pub(crate) const NFTA_TABLE_HANDLE: u16 = 4;

pub(crate) const NFTA_CHAIN_TABLE: u16 = 1;
pub(crate) const NFTA_CHAIN_HANDLE: u16 = 2;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_CHAIN_HOOK: u16 = 4;
pub(crate) const NFTA_CHAIN_POLICY: u16 = 5;
pub(crate) const NFTA_CHAIN_USE: u16 = 6;
pub(crate) const NFTA_CHAIN_TYPE: u16 = 7;
pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFTA_HOOK_PRIORITY: u16 = 2;

pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_HANDLE: u16 = 3;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(crate) const NFTA_RULE_USERDATA: u16 = 7;

pub(crate) const NFTA_SET_TABLE: u16 = 1;
pub(crate) const NFTA_SET_NAME: u16 = 2;
pub(crate) const NFTA_SET_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(crate) const NFTA_SET_KEY_LEN: u16 = 5;
pub(crate) const NFTA_SET_DESC: u16 = 9;
pub(crate) const NFTA_SET_ID: u16 = 10;
pub(crate) const NFTA_SET_USERDATA: u16 = 13;
pub(crate) const NFTA_SET_OBJ_TYPE: u16 = 15;
pub(crate) const NFT_SET_INTERVAL: u32 = 4;
pub(crate) const NFT_SET_TIMEOUT: u32 = 16;
pub(crate) const NFT_SET_EVAL: u32 = 32;

pub(crate) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(crate) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(crate) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(crate) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(crate) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(crate) const NFTA_SET_ELEM_EXPR: u16 = 7;
pub(crate) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(crate) const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
/// The element `*`: matches every key without an element of its own.
pub(crate) const NFT_SET_ELEM_CATCHALL: u32 = 2;

pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;
pub(crate) const NFT_REG_VERDICT: u32 = 0;
pub(crate) const NFT_REG_1: u32 = 1;
pub(crate) const NFT_REG_4: u32 = 4;
pub(crate) const NFT_REG32_00: u32 = 8;
pub(crate) const NFT_REG32_15: u32 = 23;

pub(crate) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(crate) const NFTA_IMMEDIATE_DATA: u16 = 2;

pub(crate) const NFTA_BITWISE_SREG: u16 = 1;
pub(crate) const NFTA_BITWISE_DREG: u16 = 2;
pub(crate) const NFTA_BITWISE_LEN: u16 = 3;
pub(crate) const NFTA_BITWISE_MASK: u16 = 4;
pub(crate) const NFTA_BITWISE_XOR: u16 = 5;
pub(crate) const NFTA_BITWISE_OP: u16 = 6;
pub(crate) const NFT_BITWISE_MASK_XOR: u32 = 0;

pub(crate) const NFTA_BYTEORDER_SREG: u16 = 1;
pub(crate) const NFTA_BYTEORDER_DREG: u16 = 2;
pub(crate) const NFTA_BYTEORDER_LEN: u16 = 4;
pub(crate) const NFTA_BYTEORDER_SIZE: u16 = 5;

pub(crate) const NFTA_CMP_SREG: u16 = 1;
pub(crate) const NFTA_CMP_OP: u16 = 2;
pub(crate) const NFTA_CMP_DATA: u16 = 3;
pub(crate) const NFT_CMP_EQ: u32 = 0;
pub(crate) const NFT_CMP_NEQ: u32 = 1;
pub(crate) const NFT_CMP_LTE: u32 = 3;
pub(crate) const NFT_CMP_GTE: u32 = 5;

pub(crate) const NFTA_RANGE_SREG: u16 = 1;
pub(crate) const NFTA_RANGE_OP: u16 = 2;
pub(crate) const NFTA_RANGE_FROM_DATA: u16 = 3;
pub(crate) const NFTA_RANGE_TO_DATA: u16 = 4;
pub(crate) const NFT_RANGE_NEQ: u32 = 1;

pub(crate) const NFTA_LOOKUP_SET: u16 = 1;
pub(crate) const NFTA_LOOKUP_SREG: u16 = 2;
pub(crate) const NFTA_LOOKUP_DREG: u16 = 3;
pub(crate) const NFTA_LOOKUP_FLAGS: u16 = 5;
pub(crate) const NFT_LOOKUP_F_INV: u32 = 1;

pub(crate) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(crate) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(crate) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(crate) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(crate) const NFTA_PAYLOAD_SREG: u16 = 5;
pub(crate) const NFTA_PAYLOAD_CSUM_TYPE: u16 = 6;
pub(crate) const NFTA_PAYLOAD_CSUM_OFFSET: u16 = 7;
pub(crate) const NFTA_PAYLOAD_CSUM_FLAGS: u16 = 8;
pub(crate) const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub(crate) const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
pub(crate) const NFT_PAYLOAD_CSUM_NONE: u32 = 0;
pub(crate) const NFT_PAYLOAD_CSUM_INET: u32 = 1;

pub(crate) const NFTA_META_DREG: u16 = 1;
pub(crate) const NFTA_META_KEY: u16 = 2;
pub(crate) const NFTA_META_SREG: u16 = 3;
pub(crate) const NFT_META_PROTOCOL: u32 = 1;
pub(crate) const NFT_META_PRIORITY: u32 = 2;
pub(crate) const NFT_META_MARK: u32 = 3;
pub(crate) const NFT_META_IIF: u32 = 4;
pub(crate) const NFT_META_OIF: u32 = 5;
pub(crate) const NFT_META_IIFNAME: u32 = 6;
pub(crate) const NFT_META_OIFNAME: u32 = 7;
pub(crate) const NFT_META_SKUID: u32 = 10;
pub(crate) const NFT_META_SKGID: u32 = 11;
pub(crate) const NFT_META_NFTRACE: u32 = 12;
pub(crate) const NFT_META_NFPROTO: u32 = 15;
pub(crate) const NFT_META_L4PROTO: u32 = 16;
pub(crate) const NFT_META_PKTTYPE: u32 = 19;

pub(crate) const NFTA_EXTHDR_DREG: u16 = 1;
pub(crate) const NFTA_EXTHDR_TYPE: u16 = 2;
pub(crate) const NFTA_EXTHDR_OFFSET: u16 = 3;
pub(crate) const NFTA_EXTHDR_LEN: u16 = 4;
pub(crate) const NFTA_EXTHDR_SREG: u16 = 7;

pub(crate) const NFTA_DYNSET_SET_NAME: u16 = 1;

pub(crate) const NFTA_OBJREF_IMM_TYPE: u16 = 1;
pub(crate) const NFTA_OBJREF_IMM_NAME: u16 = 2;
pub(crate) const NFTA_OBJREF_SET_NAME: u16 = 4;

pub(crate) const NFTA_CT_DREG: u16 = 1;
pub(crate) const NFTA_CT_KEY: u16 = 2;
pub(crate) const NFTA_CT_DIRECTION: u16 = 3;
pub(crate) const NFTA_CT_SREG: u16 = 4;
pub(crate) const NFT_CT_STATE: u32 = 0;
pub(crate) const NFT_CT_DIRECTION: u32 = 1;
pub(crate) const NFT_CT_STATUS: u32 = 2;
pub(crate) const NFT_CT_MARK: u32 = 3;
pub(crate) const NFT_CT_HELPER: u32 = 6;
pub(crate) const NFT_CT_LABELS: u32 = 13;
pub(crate) const NFT_CT_ZONE: u32 = 17;
pub(crate) const NFT_CT_EVENTMASK: u32 = 18;

pub(crate) const NFTA_COUNTER_BYTES: u16 = 1;
pub(crate) const NFTA_COUNTER_PACKETS: u16 = 2;

pub(crate) const NFTA_TPROXY_FAMILY: u16 = 1;
pub(crate) const NFTA_TPROXY_REG_ADDR: u16 = 2;
pub(crate) const NFTA_TPROXY_REG_PORT: u16 = 3;

pub(crate) const NFTA_NAT_TYPE: u16 = 1;
pub(crate) const NFTA_NAT_FAMILY: u16 = 2;
pub(crate) const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub(crate) const NFTA_NAT_REG_ADDR_MAX: u16 = 4;
pub(crate) const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub(crate) const NFTA_NAT_REG_PROTO_MAX: u16 = 6;
pub(crate) const NFTA_NAT_FLAGS: u16 = 7;
pub(crate) const NFT_NAT_SNAT: u32 = 0;
pub(crate) const NFT_NAT_DNAT: u32 = 1;

pub(crate) const NFTA_MASQ_REG_PROTO_MIN: u16 = 2;

pub(crate) const NFTA_SOCKET_KEY: u16 = 1;
pub(crate) const NFTA_SOCKET_DREG: u16 = 2;
pub(crate) const NFTA_SOCKET_LEVEL: u16 = 3;
pub(crate) const NFT_SOCKET_CGROUPV2: u32 = 3;

pub(crate) const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
pub(crate) const NFTA_REDIR_REG_PROTO_MAX: u16 = 2;
pub(crate) const NFTA_REDIR_FLAGS: u16 = 3;

/// iptables-nft's matches and targets: `NFTA_MATCH_NAME` and `NFTA_TARGET_NAME`, and so on.
pub(crate) const NFTA_XT_NAME: u16 = 1;
pub(crate) const NFTA_XT_REV: u16 = 2;
pub(crate) const NFTA_XT_INFO: u16 = 3;

// include/uapi/linux/netfilter/nf_nat.h (v6.18).
/// The address is given.
pub(crate) const NF_NAT_RANGE_MAP_IPS: u32 = 1;
/// The port is given.
pub(crate) const NF_NAT_RANGE_PROTO_SPECIFIED: u32 = 2;
/// A whole network is mapped onto another.
pub(crate) const NF_NAT_RANGE_NETMAP: u32 = 1 << 6;

// `NF_CT_STATE_INVALID_BIT` and `NF_CT_STATE_BIT(ctinfo)` of include/uapi/linux/netfilter/nf_conntrack_common.h (v6.18);
// these names are ours.
pub(crate) const NF_CT_STATE_INVALID: u32 = 1;
pub(crate) const NF_CT_STATE_ESTABLISHED: u32 = 1 << 1;
pub(crate) const NF_CT_STATE_RELATED: u32 = 1 << 2;

/// include/uapi/linux/if.h (v6.18): interface names are compared with their zero padding.
pub(crate) const IFNAMSIZ: usize = 16;
