//! The kernel's numbers for rtnetlink, under the kernel's names.
//!
//! From `include/uapi/linux/rtnetlink.h`, `if.h`, `if_link.h`, `if_addr.h`, `veth.h` and `fib_rules.h` (Linux 6.12).

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_DELRULE: u16 = 33;
pub(super) const RTM_GETRULE: u16 = 34;

pub(super) const AF_INET6: u8 = 10;

pub(super) const IFF_UP: u32 = 1;

pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_OPERSTATE: u16 = 16;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_NET_NS_FD: u16 = 28;
pub(super) const IFLA_XDP: u16 = 43;
/// `IFLA_XDP_PROG_ID`, and one for each mode (driver, generic, hardware).
pub(super) const IFLA_XDP_PROGRAMS: std::ops::RangeInclusive<u16> = 4..=7;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const VETH_INFO_PEER: u16 = 1;
pub(super) const IF_OPER_UP: u8 = 6;

pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
pub(super) const IFA_PROTO: u16 = 11;
/// No duplicate address detection: packets may use the address at once.
pub(super) const IFA_F_NODAD: u8 = 0x02;

pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_SRC: u16 = 2;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PREFSRC: u16 = 7;
pub(super) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_TABLE: u16 = 15;
pub(super) const RTA_MARK: u16 = 16;
pub(super) const RTA_UID: u16 = 25;
pub(super) const RT_TABLE_UNSPEC: u8 = 0;
pub(super) const RT_TABLE_MAIN: u8 = 254;
pub(super) const RT_TABLE_LOCAL: u8 = 255;
pub(super) const RTPROT_BOOT: u8 = 3;
pub(super) const RT_SCOPE_UNIVERSE: u8 = 0;
pub(super) const RT_SCOPE_HOST: u8 = 254;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RTN_LOCAL: u8 = 2;
pub(super) const RTN_BLACKHOLE: u8 = 6;
pub(super) const RTN_UNREACHABLE: u8 = 7;
pub(super) const RTN_PROHIBIT: u8 = 8;
/// `RTM_F_CLONED`.
pub(super) const RTM_F_CLONED: u32 = 0x200;

pub(super) const FRA_PRIORITY: u16 = 6;
pub(super) const FRA_FWMARK: u16 = 10;
pub(super) const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(super) const FRA_TABLE: u16 = 15;
pub(super) const FRA_FWMASK: u16 = 16;
pub(super) const FRA_PROTOCOL: u16 = 21;
pub(super) const FR_ACT_TO_TBL: u8 = 1;
pub(super) const FIB_RULE_INVERT: u32 = 2;
