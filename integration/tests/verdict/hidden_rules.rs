//! Rules that a tool's listing does not show as the kernel runs them: a real connection follows them, so the verdict is
//! not `redirected`.

use crate::RedirectedPod;
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::make;
use gybe_integration::programs::ours;
use gybe_integration::vectors::Location;
use gybe_netfilter::apply::backend::BackendKind;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `struct ipt_entry` and its fields (include/uapi/linux/netfilter_ipv4/ip_tables.h, v6.18).
const ENTRY: usize = 112;
const TARGET_OFFSET: usize = 88;
const NEXT_OFFSET: usize = 90;
const INVERTED: usize = 83;
/// The bytes of a target before its data, and of its name.
const TARGET: usize = 32;

const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

fn entry(target: &str, data: &[u8]) -> Vec<u8> {
    let size = TARGET + data.len().next_multiple_of(8);
    let mut entry = vec![0; ENTRY + size];
    for (at, number) in [(TARGET_OFFSET, ENTRY), (NEXT_OFFSET, ENTRY + size), (ENTRY, size)] {
        entry[at..at + 2].copy_from_slice(&u16::try_from(number).unwrap().to_ne_bytes());
    }
    entry[ENTRY + 2..ENTRY + 2 + target.len()].copy_from_slice(target.as_bytes());
    entry[ENTRY + TARGET..ENTRY + TARGET + data.len()].copy_from_slice(data);
    entry
}

fn verdict(number: i32) -> Vec<u8> {
    entry("", &[number.to_ne_bytes(), [0; 4]].concat())
}

fn head(name: &str) -> Vec<u8> {
    let mut padded = name.as_bytes().to_vec();
    padded.resize(30, 0);
    entry("ERROR", &padded)
}

/// `REDIRECT --to-ports 9000` of TCP: `struct nf_nat_ipv4_multi_range_compat` with one range of ports.
fn redirect() -> Vec<u8> {
    let port = 9000_u16.to_be_bytes();
    let range = [&1_u32.to_ne_bytes()[..], &2_u32.to_ne_bytes(), &[0; 8], &port, &port].concat();
    let mut entry = entry("REDIRECT", &range);
    // Of TCP: `struct ipt_ip`'s proto.
    entry[80] = 6;
    entry
}

/// An entry that no packet passes: it inverts a test of fragments that it does not make (`ip_packet_match`).
fn never_accepts() -> Vec<u8> {
    let mut entry = verdict(ACCEPT);
    entry[INVERTED] = 0x20;
    entry
}

/// An entry that no packet passes: its address has a bit outside of its mask.
fn accepts_no_address() -> Vec<u8> {
    let mut entry = verdict(ACCEPT);
    entry[3] = 1;
    entry
}

/// An entry of chain OUTPUT.
enum Entry {
    Bytes(Vec<u8>),
    /// A jump to the entry with this index among those behind the built-in chains.
    Jump {
        to: usize,
    },
}

/// Replaces table nat of iptables-legacy: `output` before the policy of OUTPUT, `chains` behind the built-in chains.
fn replace(output: Vec<Entry>, chains: Vec<Vec<u8>>) -> Result<(), Errno> {
    const HOOKS: usize = 5;
    let policies = || Entry::Bytes(verdict(ACCEPT));
    // PREROUTING, INPUT, OUTPUT and POSTROUTING: hooks 0, 1, 3 and 4.
    let (before, rules) = (2, output.len());
    let mut entries = vec![policies(), policies()];
    entries.extend(output);
    entries.extend([policies(), policies()]);
    let first_of_chains = entries.len();
    entries.extend(chains.into_iter().chain([head("ERROR")]).map(Entry::Bytes));
    let length = |one: &Entry| match one {
        Entry::Bytes(bytes) => bytes.len(),
        Entry::Jump { .. } => verdict(0).len(),
    };
    let offset =
        |index: usize| -> u32 { entries[..index].iter().map(length).sum::<usize>().try_into().unwrap() };
    let begins = [0, offset(1), 0, offset(before), offset(before + rules + 1)];
    let policies = [0, offset(1), 0, offset(before + rules), offset(before + rules + 1)];
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|one| match one {
            Entry::Bytes(bytes) => bytes.clone(),
            Entry::Jump { to } => verdict(offset(first_of_chains + to).try_into().unwrap()),
        })
        .collect();
    // `struct ipt_replace`; the table of a new namespace has five entries, whose counters the kernel writes back.
    let counters = [0_u8; 5 * 16];
    let number = |number: usize| u32::try_from(number).unwrap();
    let mut name = b"nat".to_vec();
    name.resize(32, 0);
    let numbers =
        [&[0b11011, number(entries.len()), number(bytes.len())], &begins[..HOOKS], &policies, &[5]].concat();
    let numbers = numbers.into_iter().flat_map(u32::to_ne_bytes).collect();
    let pointer = counters.as_ptr().expose_provenance().to_ne_bytes().to_vec();
    set(&[name, numbers, pointer, bytes].concat())
}

#[expect(unsafe_code, reason = "nix has no option whose value is a table")]
fn set(table: &[u8]) -> Result<(), Errno> {
    /// `IPT_SO_SET_REPLACE`.
    const SET_REPLACE: i32 = 64;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let length = table.len().try_into().unwrap();
    // SAFETY: the kernel reads `length` bytes of the table, and writes counters into the buffer that the caller keeps.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_IP, SET_REPLACE, table.as_ptr().cast(), length)
    };
    Errno::result(done).map(drop)
}

/// Asserts that the application's listener answers, not the proxy's, and that no tool reports a redirected pod.
fn assert_hidden(pod: &RedirectedPod, what: &str) -> Result<(), Failure> {
    match make(&pod.topology, pod.flow("v4.app->ext:80"), Duration::from_secs(5))? {
        ConnectionOutcome::Replied(answer) => assert_eq!(answer.by, "app:9000", "{what}"),
        other => panic!("{what}: {other}"),
    }
    assert_not_known(pod, what)
}

/// Asserts that `verify` and `trace` report neither a redirected connection nor another.
fn assert_not_known(pod: &RedirectedPod, what: &str) -> Result<(), Failure> {
    let netns = pod.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let policy = r#"{"enable_ipv6": true, "inbound_ports_exclude": ["15090", "15021", "15020"]}"#;
    let verify = ours("gybe", &["verify", "--netns", &netns, "--policy", "-"], policy)?;
    assert!(verify.code == Some(1) && verify.out.starts_with("unknown: "), "{what}: {verify:?}");
    let packet = ["trace", "out", "tcp", "10.1.2.3:80", "--uid", "1000", "--netns", &netns];
    let trace = ours("gybe", &packet, "")?;
    assert!(trace.out.contains("goes to a destination that is not known"), "{what}: {trace:?}");
    Ok(())
}

/// What is wrong with a table, the entries of its chain OUTPUT, and those behind the built-in chains.
type Table = (&'static str, Vec<Entry>, Vec<Vec<u8>>);

#[test]
fn a_table_of_iptables_legacy_that_iptables_cannot_write_is_not_judged_as_what_it_resembles()
-> Result<(), Failure> {
    let bytes = Entry::Bytes;
    let jump = |to| Entry::Jump { to };
    let tables: [Table; 5] = [
        (
            "the last entry of a user chain is no RETURN",
            vec![jump(1)],
            vec![head("MINE"), redirect(), head("NEXT"), verdict(RETURN)],
        ),
        (
            "two user chains have one name",
            vec![jump(3)],
            vec![head("MINE"), verdict(RETURN), head("MINE"), redirect(), verdict(RETURN)],
        ),
        (
            "a jump leads to the middle of a chain",
            vec![jump(2)],
            vec![head("MINE"), verdict(RETURN), redirect(), verdict(RETURN)],
        ),
        (
            "a test of fragments is inverted and not made",
            vec![bytes(never_accepts()), bytes(redirect())],
            Vec::new(),
        ),
        (
            "an address has bits outside of its mask",
            vec![bytes(accepts_no_address()), bytes(redirect())],
            Vec::new(),
        ),
    ];
    for (what, output, chains) in tables {
        let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
        pod.topology.at(Location::Pod).run(|| replace(output, chains))??;
        assert_hidden(&pod, what)?;
    }
    Ok(())
}

/// The rules that were read so far say nothing about the connections of the pod, which is redirected.
#[test]
fn a_namespace_with_more_than_is_read_is_neither_redirected_nor_not_redirected() -> Result<(), Failure> {
    // Root of a user namespace sends messages of net.core.wmem_max bytes at most: a thousand commands fit into one.
    let many = |object: &str, commands: &str| {
        format!("nft 'table inet other {{ {object}; }}'; {commands} | split -l 1000 --filter='nft -f -'")
    };
    let rules = "yes add rule inet other theirs counter | head -n 20001";
    let elements = "seq 100001 | sed 's/.*/add element inet other theirs { & }/'";
    for (what, script) in [
        ("20,001 rules", many("chain theirs { }", rules)),
        ("100,001 elements", many("set theirs { type mark; }", elements)),
        ("1,001 routes", "seq 1001 | sed 's/^/route add 10.1.2.3 dev lo table /' | ip -batch -".to_owned()),
        ("1,001 routing rules", "seq 1001 | sed 's/^/rule add lookup main pref 4/' | ip -batch -".to_owned()),
    ] {
        let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
        pod.run_as_other_owner(&script)?;
        assert_not_known(&pod, what)?;
    }
    Ok(())
}

/// The kernel ends its list of rules before one that is longer than a datagram (`nf_tables_dump_rules`).
#[test]
fn rules_behind_one_that_is_too_long_to_be_listed_are_missed() -> Result<(), Failure> {
    let logs = format!("log prefix \"{}\" ", "a".repeat(120));
    // An object's name has 255 characters at most; a rule of 120 references takes more than 32 KiB.
    let counter = "n".repeat(250);
    for (what, long) in [
        ("a rule of 14 KiB", logs.repeat(100)),
        ("a rule of 34 KiB", format!("counter name {counter} ").repeat(120)),
    ] {
        let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
        pod.run_as_other_owner(&format!(
            "nft -f - <<'END'\ntable inet other {{\ncounter {counter} {{ }}\nchain theirs {{\n\
             type nat hook output priority -110;\nmeta mark 7777 {long}\n\
             meta skuid 1000 tcp dport 80 redirect to :9000\n}}\n}}\nEND"
        ))?;
        match what {
            // With long datagrams it is listed, and the rule behind it is seen.
            "a rule of 14 KiB" => {
                let verdict = pod.verdict()?;
                assert!(verdict.reasons.join("\n").contains("redirect to :9000"), "{verdict:?}");
            }
            _ => assert_hidden(&pod, what)?,
        }
    }
    Ok(())
}
