//! Ten thousand pods that come and go leave no descriptor and no memory. A process of its own: other tests open
//! descriptors, too.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the stand-in runs as a process")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "ztunnel/fixture.rs"]
mod fixture;

use fixture::{Server, namespaces, socket};
use gybe_installer::agent::ztunnel::ZtunnelStatus;
use gybe_integration::programs::path_of_ours;
use gybe_test_support::{TestDir, wait_until};
use std::fs;
use std::process::{Command, Stdio};

const PODS: usize = 10_000;
/// The pods that are there at the same time.
const AT_ONCE: usize = 16;
/// What the allocator may keep.
const GROWTH_KIB: u64 = 4096;

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn descriptors_and_memory_stay_flat_over_ten_thousand_pods() {
    let directory = TestDir::new("zds-growth");
    let (server, pods) = (Server::start(&directory), namespaces::<AT_ONCE>());
    // Another process: this one's memory is measured.
    let mut process = Command::new(path_of_ours("gybe-ztunnel").unwrap());
    let mut process = process.arg(socket(&directory)).stdout(Stdio::null()).spawn().unwrap();
    let cycle = |from: usize| {
        std::thread::scope(|scope| {
            for (slot, namespace) in pods.iter().enumerate() {
                let server = &server;
                scope.spawn(move || {
                    for number in (from..from + PODS / 10).skip(slot).step_by(AT_ONCE) {
                        server.add(&format!("u{number}"), namespace).unwrap();
                        assert!(server.remove(&format!("u{number}")));
                    }
                });
            }
        });
        // The last ends are sent.
        server.add("last", &pods[0]).unwrap();
        server.remove("last");
        let requests = |status: ZtunnelStatus| status.counts.acknowledged.count;
        let expected = u64::try_from(1 + (from + PODS / 10) * 2 + (from / (PODS / 10) + 1) * 2).unwrap();
        wait_until("all requests are answered", || requests(server.pods.status()) == expected);
        (descriptors(std::process::id()), descriptors(process.id()), resident_kib())
    };
    let (ours, theirs, memory) = cycle(0);
    for from in (PODS / 10..PODS).step_by(PODS / 10) {
        let (now, of_ztunnel, resident) = cycle(from);
        assert!(now <= ours && of_ztunnel <= theirs, "{from}: {now} of {ours}, {of_ztunnel} of {theirs}");
        assert!(resident <= memory + GROWTH_KIB, "{from}: {resident} KiB of {memory} KiB");
    }
    assert_eq!((server.pods.status().pods, server.pods.status().counts.refused), (0, 0));
    process.kill().unwrap();
    process.wait().unwrap();
}
