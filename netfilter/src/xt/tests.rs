use super::*;
use crate::model::ruleset::Family;

/// The bytes of a structure, from those of its fields.
fn bytes(fields: &[&[u8]]) -> Vec<u8> {
    fields.concat()
}

#[test]
fn structures_are_displayed_as_iptables_save_prints_them() {
    let ports = |first: u16, last: u16| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
    let all = ports(0, u16::MAX);
    let ids = |first: u32, last: u32| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
    let word = u32::to_ne_bytes;
    // As many as `XT_MULTI_PORTS`.
    let fifteen = |ports: &[u16]| {
        (0..15).flat_map(|slot| ports.get(slot).copied().unwrap_or(0).to_ne_bytes()).collect::<Vec<_>>()
    };
    for (name, revision, data, text) in [
        ("tcp", 0, bytes(&[&all, &ports(80, 80), &[0, 0, 0, 2]]), "-m tcp ! --dport 80"),
        ("tcp", 0, bytes(&[&all, &all, &[0, 0x17, 0x02, 0]]), "-m tcp --tcp-flags FIN,SYN,RST,ACK SYN"),
        ("udp", 0, bytes(&[&ports(1, 2), &ports(53, 53), &[0]]), "-m udp --sport 1:2 --dport 53"),
        (
            "multiport",
            1,
            bytes(&[&[1, 3], &fifteen(&[80, 8000, 8100]), &[0, 1], &[0; 13], &[1]]),
            "-m multiport ! --dports 80,8000:8100",
        ),
        ("multiport", 1, bytes(&[&[1, 1], &fifteen(&[80]), &[1], &[0; 15]]), "-m multiport [unknown]"),
        ("multiport", 1, bytes(&[&[1, 16], &fifteen(&[80]), &[0; 16]]), "-m multiport [unknown]"),
        ("owner", 1, bytes(&[&ids(1337, 1337), &ids(0, 0), &[1, 1]]), "-m owner ! --uid-owner 1337"),
        ("owner", 1, bytes(&[&ids(0, 0), &ids(5, 9), &[6, 4]]), "-m owner ! --socket-exists --gid-owner 5-9"),
        ("mark", 1, bytes(&[&word(1), &word(0xff), &[1]]), "-m mark ! --mark 0x1/0xff"),
        ("connmark", 1, bytes(&[&word(0x539), &word(u32::MAX), &[0]]), "-m connmark --mark 0x539"),
        ("state", 0, word(0x46).to_vec(), "-m state --state RELATED,ESTABLISHED,UNTRACKED"),
        ("comment", 0, b"two \"words\"\0rest".to_vec(), r#"-m comment --comment "two \"words\"""#),
        ("comment", 0, b"a\nb\x1b[2J\0".to_vec(), r#"-m comment --comment "a\\x0ab\\x1b[2J""#),
        ("limit", 0, bytes(&[&word(200_000), &word(5)]), "-m limit --limit 3/min"),
        ("icmp", 0, vec![8, 0, 255, 0], "-m icmp --icmp-type 8"),
        ("icmp6", 0, vec![1, 4, 4, 1], "-m icmp6 ! --icmpv6-type 1/4"),
        ("owner", 7, vec![0; 64], "-m owner [unknown]"),
        ("cgroup", 1, vec![0; 64], "-m cgroup [unknown]"),
    ] {
        let decoded = decode_match(Family::V4, name, revision, &data);
        assert_eq!(decoded.to_string(), text);
        let short = decode_match(Family::V4, name, revision, &data[..1]);
        assert!(matches!(short, XtMatch::Test(_) | XtMatch::Unknown(_) | XtMatch::Comment(_)), "{short:?}");
    }
}

#[test]
fn targets_are_displayed_as_iptables_save_prints_them() {
    let port = |port: u16| port.to_be_bytes();
    let word = u32::to_ne_bytes;
    let redirect_v4 = bytes(&[&word(1), &word(2), &[0; 8], &port(9999), &port(9999)]);
    let range = |flags: u32, [first, last]: [u16; 2]| {
        bytes(&[&word(flags), &[10, 0, 0, 1], &[0; 12], &[10, 0, 0, 2], &[0; 12], &port(first), &port(last)])
    };
    for (family, name, revision, data, text) in [
        (Family::V4, "", 0, (-5i32).to_ne_bytes().to_vec(), "-j RETURN"),
        (Family::V4, "", 0, 152i32.to_ne_bytes().to_vec(), "-j  [unknown]"),
        (Family::V4, "REDIRECT", 0, redirect_v4, "-j REDIRECT --to-ports 9999"),
        (Family::V4, "DNAT", 1, range(3, [80, 90]), "-j DNAT --to-destination 10.0.0.1-10.0.0.2:80-90"),
        (Family::V6, "MASQUERADE", 0, range(4, [0, 0]), "-j MASQUERADE --random"),
        (
            Family::V6,
            "TPROXY",
            1,
            bytes(&[&word(u32::MAX), &word(1337), &[0; 16], &port(15001), &[0; 2]]),
            "-j TPROXY --on-port 15001 --on-ip :: --tproxy-mark 0x539/0xffffffff",
        ),
        (Family::V4, "MARK", 2, bytes(&[&word(1), &word(u32::MAX)]), "-j MARK --set-xmark 0x1/0xffffffff"),
        (
            Family::V4,
            "CONNMARK",
            2,
            bytes(&[&word(0), &word(u32::MAX), &word(u32::MAX), &[0, 0, 2, 0]]),
            "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        ),
        (Family::V4, "CONNMARK", 2, vec![0; 12], "-j CONNMARK [unknown]"),
        (Family::V4, "CT", 2, bytes(&[&1u16.to_ne_bytes(), &[0; 62]]), "-j CT --notrack"),
        (Family::V4, "CT", 2, bytes(&[&[0; 2], &2u16.to_ne_bytes(), &[0; 60]]), "-j CT --zone 2"),
        (Family::V4, "NOTRACK", 0, Vec::new(), "-j NOTRACK"),
        (Family::V6, "REJECT", 0, word(6).to_vec(), "-j REJECT --reject-with tcp-reset"),
        (Family::V4, "REJECT", 0, word(9).to_vec(), "-j REJECT [unknown]"),
        (
            Family::V4,
            "LOG",
            0,
            bytes(&[&[4, 8], b"seen: ", &[0; 24]]),
            "-j LOG --log-prefix \"seen: \" --log-uid",
        ),
        (Family::V4, "TEE", 1, vec![0; 64], "-j TEE [unknown]"),
    ] {
        assert_eq!(decode_target(family, name, revision, &data).to_string(), text);
    }
}

/// A pseudorandom generator with a fixed seed (xorshift64, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn arbitrary_bytes_are_decoded_without_a_panic() {
    let names = [
        "tcp",
        "udp",
        "multiport",
        "owner",
        "mark",
        "connmark",
        "conntrack",
        "state",
        "comment",
        "addrtype",
        "pkttype",
        "limit",
        "icmp",
        "icmp6",
        "iprange",
        "socket",
        "",
        "REDIRECT",
        "MASQUERADE",
        "DNAT",
        "SNAT",
        "TPROXY",
        "MARK",
        "CONNMARK",
        "CT",
        "NOTRACK",
        "LOG",
        "NFLOG",
        "REJECT",
        "NFQUEUE",
        "other",
    ];
    let mut random = Random(0x5eed);
    for _ in 0..20_000 {
        let length = usize::try_from(random.next() % 200).unwrap();
        // Few bits set: most flags and counts are then small, and more fields are reached.
        let sparse = random.next().is_multiple_of(2);
        let data: Vec<u8> = (0..length)
            .map(|_| {
                let byte = random.next().to_le_bytes()[0];
                if sparse { byte & random.next().to_le_bytes()[0] & 0x0f } else { byte }
            })
            .collect();
        let revision = random.next().to_le_bytes()[0] % 5;
        let name = names[usize::try_from(random.next()).unwrap() % names.len()];
        for family in [Family::V4, Family::V6] {
            let texts = [
                decode_match(family, name, revision, &data).to_string(),
                decode_target(family, name, revision, &data).to_string(),
            ];
            for text in texts {
                assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
            }
        }
    }
}
