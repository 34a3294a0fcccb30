//! The system calls of an ADD, recorded by strace: no further program, at most two sockets, no delete message.

use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{path_of_ours, run};
use std::fs;

/// Runs the example ADD in a new namespace and returns strace's record of these system calls.
fn record(test: &str, calls: &str) -> Result<String, Failure> {
    let (directory, pod) = (PluginDir::new(test), pod()?);
    let call = PluginCall::add(&pod, &directory)?;
    let (record, plugin) = (directory.path().join("record"), path_of_ours("gybe-cni")?);
    let (record_path, plugin) = (record.to_string_lossy(), plugin.to_string_lossy());
    let (calls, env) =
        (format!("trace={calls}"), call.env.iter().map(|(name, value)| format!("{name}={value}")));
    let env: Vec<String> = env.collect();
    let mut arguments = vec!["-f", "-qq", "-xx", "-s", "1000000", "-e", &calls, "-o", &record_path];
    arguments.extend(env.iter().flat_map(|set| ["-E", set]));
    arguments.push(&plugin);
    let ran = run("strace", &arguments, &call.stdin.to_string())?;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let rules = pod.run(|| run("nft", &["list", "table", "inet", "gybe"], ""))??;
    assert!(rules.out.contains("outbound-to-proxy"), "the ADD did not redirect: {rules:#?}");
    Ok(fs::read_to_string(record)?)
}

fn lines<'r>(record: &'r str, call: &str) -> Vec<&'r str> {
    record.lines().filter(|line| line.contains(call)).collect()
}

#[test]
fn f24_an_add_runs_no_program_and_starts_no_process() -> Result<(), Failure> {
    let record = record("programs", "execve,execveat,fork,vfork,clone,clone3")?;
    assert_eq!(lines(&record, "execve").len(), 1, "only the plugin's own: {record}");
    let made = record.lines().filter(|line| line.contains("clone") || line.contains("fork"));
    // The plugin's one thread, which enters the pod's namespace, is no process.
    let processes: Vec<_> = made.filter(|line| !line.contains("CLONE_THREAD")).collect();
    assert_eq!(processes, [""; 0], "{record}");
    Ok(())
}

#[test]
fn f01_an_add_opens_one_netfilter_and_at_most_one_routing_socket_and_no_other() -> Result<(), Failure> {
    let record = record("sockets", "socket,socketpair,io_uring_setup")?;
    assert_eq!(lines(&record, "NETLINK_NETFILTER").len(), 1, "{record}");
    assert!(lines(&record, "NETLINK_ROUTE").len() <= 1, "{record}");
    let known = |line: &&str| line.contains("NETLINK_NETFILTER") || line.contains("NETLINK_ROUTE");
    let others: Vec<_> = lines(&record, "socket(").into_iter().filter(|line| !known(line)).collect();
    assert_eq!(others, [""; 0], "{record}");
    assert_eq!(lines(&record, "io_uring_setup").len() + lines(&record, "socketpair").len(), 0, "{record}");
    Ok(())
}

/// `NFT_MSG_NEWRULE`, and every message of nf_tables that deletes or destroys, with
/// `NFNL_SUBSYS_NFTABLES` above them (include/uapi/linux/netfilter/nf_tables.h, v6.18).
const NEW_RULE: u16 = 0x0a06;
const DELETES: [u16; 14] = [
    0x0a02, 0x0a05, 0x0a08, 0x0a0b, 0x0a0e, 0x0a14, 0x0a18, 0x0a1a, 0x0a1b, 0x0a1c, 0x0a1d, 0x0a1e, 0x0a1f,
    0x0a20,
];

/// `RTM_NEWADDR`. rtnetlink's types come in groups of four, of which the second deletes
/// (include/uapi/linux/rtnetlink.h: `RTM_DELLINK` is 17, `RTM_DELADDR` 21, and so on).
const NEW_ADDRESS: u16 = 20;

fn is_routing_delete(kind: u16) -> bool {
    (16..0x100).contains(&kind) && kind % 4 == 1
}

/// Returns the types of the netlink messages in a batch that strace printed as `\x14\x00...`.
fn message_types(line: &str) -> Vec<u16> {
    let sent = line.split("iov_base=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let bytes: Vec<u8> = sent.split("\\x").filter_map(|hex| u8::from_str_radix(hex, 16).ok()).collect();
    let (mut types, mut rest) = (Vec::new(), bytes.as_slice());
    while let [a, b, c, d, e, f, ..] = rest {
        let length = u32::from_ne_bytes([*a, *b, *c, *d]).next_multiple_of(4);
        types.push(u16::from_ne_bytes([*e, *f]));
        rest = usize::try_from(length.max(16)).ok().and_then(|length| rest.get(length..)).unwrap_or_default();
    }
    types
}

/// After a delete, closing the netlink socket takes 7 to 15 ms.
#[test]
fn an_add_into_a_fresh_namespace_is_one_batch_and_deletes_nothing() -> Result<(), Failure> {
    let record = record("deletes", "sendmsg,sendto,sendmmsg")?;
    let sent: Vec<Vec<u16>> = record.lines().map(message_types).collect();
    let (batches, others): (Vec<_>, Vec<_>) = sent.iter().partition(|types| types.contains(&NEW_RULE));
    let [batch] = batches.as_slice() else { return Err(Failure::new(record)) };
    assert!(batch.iter().filter(|kind| **kind == NEW_RULE).count() >= 11, "{batch:x?}");
    assert!(!batch.iter().any(|kind| DELETES.contains(kind)), "{batch:x?}");
    let others: Vec<u16> = others.into_iter().flatten().copied().collect();
    assert!(others.contains(&NEW_ADDRESS), "the record lacks rtnetlink's messages: {others:?}");
    assert!(!others.iter().any(|kind| is_routing_delete(*kind) || DELETES.contains(kind)), "{others:x?}");
    Ok(())
}

/// Therefore pods start on a node whose disk is full or read-only (F11).
#[test]
fn f11_an_add_writes_nothing_to_a_disk() -> Result<(), Failure> {
    let changing = "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,link,linkat,\
                    symlink,symlinkat,truncate,ftruncate,fsync,fdatasync";
    let record = record("writes", changing)?;
    let opened =
        |line: &&str| line.contains("open") && !line.contains("O_WRONLY") && !line.contains("O_RDWR");
    let changes: Vec<_> = record.lines().filter(|line| !opened(line) || line.contains("O_CREAT")).collect();
    assert_eq!(changes, [""; 0], "{record}");
    assert!(record.contains("O_RDONLY"), "the record lacks opened files: {record}");
    Ok(())
}
