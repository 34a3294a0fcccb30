use super::*;
use crate::kernel::netlink::attr::Writer;
use crate::kernel::netlink::message::{HEADER, Header};
use crate::kernel::uapi::*;

/// Decodes an expression of a table of family inet with numbers as attributes.
fn decoded(name: &str, attributes: &[(u16, u32)]) -> Expr {
    let mut writer = Writer::default();
    writer.message(Header { kind: 0, flags: 0, sequence: 0 }, &[], |w| {
        w.text(NFTA_EXPR_NAME, name);
        w.nested(NFTA_EXPR_DATA, |w| attributes.iter().for_each(|(kind, number)| w.be32(*kind, *number)));
    });
    decode(&writer.finish().unwrap().split_off(HEADER), NFPROTO_INET)
}

#[test]
fn a_translation_is_for_the_ip_version_of_its_own_attribute() {
    for (family, is_for) in [
        (NFPROTO_INET, None),
        (Family::V4.number(), Some(Family::V4)),
        (Family::V6.number(), Some(Family::V6)),
    ] {
        let nat = decoded("nat", &[(NFTA_NAT_TYPE, 1), (NFTA_NAT_FAMILY, family.into())]);
        let Expr::Nat(nat) = nat else { panic!("{nat:?}") };
        assert_eq!(nat.is_for, is_for);
    }
    for attributes in [&[(NFTA_NAT_TYPE, 1)][..], &[(NFTA_NAT_TYPE, 1), (NFTA_NAT_FAMILY, 7)]] {
        assert!(matches!(decoded("nat", attributes), Expr::Unknown(_)), "{attributes:?}");
    }
}

#[test]
fn a_write_names_the_checksum_that_it_updates() {
    const LINK: u32 = 0;
    const NETWORK: u32 = NFT_PAYLOAD_NETWORK_HEADER;
    for ((base, offset), [kind, at, flags], updates) in [
        ((NETWORK, 8), [0, 0, 0], Checksum::None),
        ((NETWORK, 8), [1, 10, 0], Checksum::Ipv4),
        ((NETWORK, 9), [1, 10, 0], Checksum::Other),
        ((NETWORK, 8), [1, 18, 0], Checksum::Other),
        ((LINK, 8), [1, 10, 0], Checksum::Other),
        ((NETWORK, 16), [1, 10, 1], Checksum::Other),
        ((NETWORK, 16), [0, 0, 1], Checksum::Other),
        ((NETWORK, 16), [2, 10, 0], Checksum::Other),
    ] {
        let write = decoded(
            "payload",
            &[
                (NFTA_PAYLOAD_SREG, 1),
                (NFTA_PAYLOAD_BASE, base),
                (NFTA_PAYLOAD_OFFSET, offset),
                (NFTA_PAYLOAD_LEN, 2),
                (NFTA_PAYLOAD_CSUM_TYPE, kind),
                (NFTA_PAYLOAD_CSUM_OFFSET, at),
                (NFTA_PAYLOAD_CSUM_FLAGS, flags),
            ],
        );
        let Expr::Write { updates: found, .. } = write else { panic!("{write:?}") };
        assert_eq!(found, updates, "{base} {offset} {kind} {at} {flags}");
    }
}

#[test]
fn an_offset_or_a_length_that_no_kernel_has_is_not_evaluated() {
    for (offset, length, is_known) in
        [(0xffff, 2, true), (0x1_0000, 2, false), (0, 0xff, true), (0, 0x100, false)]
    {
        let numbers = [
            (NFTA_PAYLOAD_DREG, 1),
            (NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER),
            (NFTA_PAYLOAD_OFFSET, offset),
            (NFTA_PAYLOAD_LEN, length),
        ];
        let load = decoded("payload", &numbers);
        assert_eq!(!matches!(load, Expr::Unknown(_)), is_known, "{load:?}");
    }
}

#[test]
fn a_load_of_a_length_that_the_kernel_chooses_leaves_no_later_register_known() {
    for (name, register) in [("socket", 2), ("tunnel", 2), ("exthdr", 1), ("fib", 1), ("xfrm", 1)] {
        let load = decoded(name, &[(register, 2)]);
        let Expr::Load { source: LoadSource::Other(_, length), to } = load else { panic!("{load:?}") };
        assert_eq!((to, length), (16, REGISTERS_END - 16), "{name}");
    }
}
