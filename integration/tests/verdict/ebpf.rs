//! eBPF programs: what they do to a real connection, and that the verdict names them.
//!
//! Only the machine's root may load programs; `make` leaves out the tests that do, `a_program…`, when another user runs
//! it (`ROOT_ONLY` in the Makefile). The other tests run in either case.

use crate::RedirectedPod;
use crate::bpf::{self, EXIT, Kind, link, load, returning, set, store};
use gybe_installer::pod::cgroups::Cgroups;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::unshare_mounts;
use gybe_integration::programs::{ours, run};
use gybe_integration::vectors::Location;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::inspect::verdict::{
    Desired, NamespaceVerdict, RedirectionState, VerdictContext, judge_namespace,
};
use gybe_test_support::TestDir;
use nix::mount::{MsFlags, mount};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// Reports whether the test runs as root of the first user namespace, who may read and load programs.
fn is_machines_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// A redirected pod with one process.
struct Pod {
    redirected: RedirectedPod,
    cgroup: Option<PathBuf>,
    process: Child,
}

impl Pod {
    fn new() -> Result<Self, Failure> {
        let redirected = RedirectedPod::redirected_by(BackendKind::Nft)?;
        #[allow(clippy::disallowed_methods, reason = "a process of the pod")]
        let start = || Command::new("sleep").arg("600").spawn();
        let process = redirected.topology.at(Location::Pod).run(start)??;
        Ok(Self { redirected, cgroup: None, process })
    }

    /// Makes a pod whose process is in a cgroup of its own, to which programs can be attached.
    fn in_own_cgroup() -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(
            is_machines_root(),
            "only the machine's root may load eBPF programs: run make -C integration kernel as root"
        );
        let mut pod = Self::new()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
        let name = format!("gybe-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // A parent cgroup, and the pod's own.
        let own = Path::new(mount.split(' ').nth(4).unwrap()).join(name).join("app");
        fs::create_dir_all(&own).unwrap();
        pod.cgroup = Some(own);
        fs::write(pod.cgroup().join("cgroup.procs"), pod.process.id().to_string()).unwrap();
        Ok(pod)
    }

    fn cgroup(&self) -> &Path {
        self.cgroup.as_deref().unwrap()
    }

    /// Attaches to the parent of the cgroup that the pod's process is in.
    fn attach(&self, kind: Kind, code: &[bpf::Instruction]) -> OwnedFd {
        let ancestor = fs::File::open(self.cgroup().parent().unwrap()).unwrap();
        let program = load(kind, "gybe_test", code).unwrap();
        link(&program, kind, ancestor.as_raw_fd().try_into().unwrap()).unwrap()
    }

    /// The listener that answers a connection from the cgroup to 10.1.2.3:80.
    fn answered_by(&self) -> Result<String, Failure> {
        let connect = "exec 3<>/dev/tcp/10.1.2.3/80 && timeout 5 cat <&3";
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec timeout 5 setpriv --reuid=1000 --regid=1000 --clear-groups bash -c '{connect}'",
            self.cgroup().display()
        );
        Ok(self.redirected.topology.at(Location::Pod).run(|| run("sh", &["-c", &script], ""))??.out)
    }

    fn verdict(&self) -> Result<NamespaceVerdict, Failure> {
        let policy = &self.redirected.policy;
        let judge = || {
            let programs = Cgroups::of_this_namespace().programs();
            let reading = VerdictContext { only: None, whole: &BackendKind::ALL, programs: Some(&programs) };
            judge_namespace(Desired::Policy(policy), reading)
        };
        Ok(self.redirected.topology.at(Location::Pod).run(judge)??)
    }

    fn interface(&self, name: &str) -> Result<u32, Failure> {
        let index = || nix::net::if_::if_nametoindex(name);
        Ok(self.redirected.topology.at(Location::Pod).run(index)??)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for cgroup in self.cgroup.iter().flat_map(|own| [Some(own.as_path()), own.parent()]).flatten() {
            let _ = fs::remove_dir(cgroup);
        }
    }
}

fn network_order(port: u16) -> u32 {
    u16::from_ne_bytes(port.to_be_bytes()).into()
}

/// To the application's port 9000 at the pod's own address, as a socket load balancer chooses a backend.
fn rewriting() -> Vec<bpf::Instruction> {
    let address = u32::from_ne_bytes(Ipv4Addr::new(10, 244, 0, 10).octets());
    // `struct bpf_sock_addr`: user_ip4 at 4, user_port at 24.
    vec![set(2, address), store(4, 2), set(2, network_order(9000)), store(24, 2), set(0, 1), EXIT]
}

#[test]
fn the_verdict_has_a_note_about_unread_programs_only_without_the_privilege_to_read_them()
-> Result<(), Failure> {
    let pod = Pod::new()?;
    let verdict = pod.verdict()?;
    assert_eq!((verdict.state, &verdict.reasons[..]), (RedirectionState::Redirected, &[][..]), "{verdict:?}");
    let not_read = verdict.notes.iter().any(|note| {
        note == "eBPF programs of the pod's cgroups could not be read: Operation not permitted; it takes \
                 CAP_SYS_ADMIN in the first user namespace"
    });
    assert_eq!(not_read, !is_machines_root(), "{verdict:?}");
    Ok(())
}

#[test]
fn a_namespace_without_a_process_is_judged_without_cgroups_and_a_note_says_so() -> Result<(), Failure> {
    let redirected = RedirectedPod::redirected_by(BackendKind::Nft)?;
    let netns = redirected.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let policy = r#"{"enable_ipv6": true, "inbound_ports_exclude": ["15090", "15021", "15020"]}"#;
    let verify = ours("gybe", &["verify", "--netns", &netns, "--policy", "-"], policy)?;
    let says = "cgroups were not looked for: no process was found in this network namespace";
    assert!(verify.code == Some(0) && verify.err.contains(says), "{verify:?}");
    Ok(())
}

/// The control: without a program, and with one that only filters, the proxy answers.
#[test]
fn a_program_that_rewrites_destinations_makes_the_verdict_unknown() -> Result<(), Failure> {
    let pod = Pod::in_own_cgroup()?;
    let answered = pod.answered_by()?;
    assert!(answered.contains("envoy:15001"), "{answered}");
    {
        let _filters = pod.attach(bpf::CGROUP_EGRESS, &returning(1));
        let (answered, verdict) = (pod.answered_by()?, pod.verdict()?);
        assert!(answered.contains("envoy:15001"), "{answered}");
        assert_eq!(verdict.state, RedirectionState::Redirected, "{verdict:?}");
        let says = "at cgroup hook cgroup_inet_egress may drop packets";
        assert!(verdict.notes.iter().any(|note| note.contains(says)), "{verdict:?}");
    }
    let _rewrites = pod.attach(bpf::CONNECT4, &rewriting());
    let answered = pod.answered_by()?;
    assert!(answered.contains("app:9000"), "{answered}");
    let netns = pod.redirected.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let policy = r#"{"enable_ipv6": true, "inbound_ports_exclude": ["15090", "15021", "15020"]}"#;
    let verify = ours("gybe", &["verify", "--netns", &netns, "--policy", "-"], policy)?;
    assert_eq!(verify.code, Some(1), "{verify:?}");
    assert!(verify.out.starts_with("unknown: eBPF program gybe_test (id "), "{verify:?}");
    assert!(verify.out.contains("at cgroup hook connect4 may choose another destination"), "{verify:?}");
    let trace =
        ours("gybe", &["trace", "out", "tcp", "10.1.2.3:80", "--uid", "1000", "--netns", &netns], "")?;
    assert!(trace.err.contains("note: not evaluated: eBPF program gybe_test"), "{trace:?}");
    Ok(())
}

/// A socket that is bound to eth0 does not reach the proxy on `lo`.
#[test]
fn a_program_that_chooses_the_device_of_sockets_makes_the_verdict_unknown() -> Result<(), Failure> {
    let pod = Pod::in_own_cgroup()?;
    // `struct bpf_sock`: bound_dev_if at 0.
    let code = [set(2, pod.interface("eth0")?), store(0, 2), set(0, 1), EXIT];
    let _binds = pod.attach(bpf::SOCK_CREATE, &code);
    let (answered, verdict) = (pod.answered_by()?, pod.verdict()?);
    assert!(!answered.contains("envoy:15001"), "{answered}");
    assert_eq!(verdict.state, RedirectionState::Unknown, "{verdict:?}");
    let says = "at cgroup hook sock_create may choose the device and the mark of a socket";
    assert!(verdict.reasons.iter().any(|reason| reason.contains(says)), "{verdict:?}");
    Ok(())
}

#[test]
fn a_program_at_any_kind_of_hook_is_named() -> Result<(), Failure> {
    for (kind, returns, answer, says) in [
        (
            bpf::SENDMSG4,
            1,
            RedirectionState::Unknown,
            "at cgroup hook sendmsg4 may choose another destination",
        ),
        (bpf::SOCK_OPS, 1, RedirectionState::Unknown, "at cgroup hook sock_ops may move"),
        (
            bpf::GETSOCKOPT,
            1,
            RedirectionState::Unknown,
            "at cgroup hook getsockopt may change the original destination",
        ),
        (bpf::POST_BIND4, 1, RedirectionState::Redirected, "at cgroup hook post_bind4 may refuse a bind"),
        (bpf::SK_LOOKUP, 1, RedirectionState::Unknown, "at sk_lookup of the network namespace may choose"),
        // `TCX_NEXT`.
        (bpf::TCX_INGRESS, u32::MAX, RedirectionState::Unknown, "at tcx ingress of eth0 may rewrite"),
        // `XDP_PASS`.
        (bpf::XDP, 2, RedirectionState::Unknown, "at XDP of eth0 may rewrite"),
        // On a kernel with CONFIG_NETFILTER_NETLINK_HOOK the namespace is known and the answer is unknown.
        (bpf::NETFILTER, 1, RedirectionState::Redirected, "at netfilter hook output priority 50 may drop"),
    ] {
        let pod = Pod::in_own_cgroup()?;
        let code = returning(returns);
        let place = pod.redirected.topology.at(Location::Pod);
        let program = || load(kind, "gybe_test", &code).unwrap_or_else(|why| panic!("{kind:?}: {why}"));
        let _attached = match kind {
            bpf::NETFILTER => place.run(|| bpf::link_at_output(&program()))?,
            bpf::TCX_INGRESS | bpf::XDP => {
                let index = pod.interface("eth0")?;
                place.run(|| link(&program(), kind, index))?
            }
            bpf::SK_LOOKUP => {
                let netns = fs::File::open(place.path()).unwrap();
                link(&program(), kind, netns.as_raw_fd().try_into().unwrap())
            }
            _ => Ok(pod.attach(kind, &code)),
        }
        .unwrap_or_else(|why| panic!("{kind:?}: {why}"));
        let verdict = pod.verdict()?;
        let all = [verdict.reasons.clone(), verdict.notes.clone()].concat();
        assert_eq!(verdict.state, answer, "{kind:?}: {verdict:?}");
        let is_named = |sentence: &String| sentence.contains("gybe_test") && sentence.contains(says);
        assert!(all.iter().any(is_named), "{kind:?}: {verdict:?}");
    }
    Ok(())
}

#[test]
fn filters_of_traffic_control_are_named() -> Result<(), Failure> {
    let pod = Pod::new()?;
    // A program of classic BPF that passes every packet.
    let classic =
        "tc qdisc add dev eth0 clsact && tc filter add dev eth0 egress bpf da bytecode '1,6 0 0 0,'";
    pod.redirected.run_as_other_owner(classic)?;
    let verdict = pod.verdict()?;
    assert_eq!(verdict.state, RedirectionState::Unknown, "{verdict:?}");
    assert!(verdict.reasons[0].contains("at tc egress of eth0 is not evaluated"), "{verdict:?}");
    Ok(())
}

/// The kernel refuses the list of filters at one that is longer than a datagram (`EMSGSIZE`).
#[test]
fn a_filter_of_traffic_control_that_is_too_long_to_be_listed_is_not_missed() -> Result<(), Failure> {
    let pod = Pod::new()?;
    pod.redirected.run_as_other_owner("tc qdisc add dev eth0 clsact")?;
    let index = pod.interface("eth0")?;
    pod.redirected.topology.at(Location::Pod).run(|| add_longest_filter(index))?;
    let verdict = pod.verdict()?;
    assert_eq!(verdict.state, RedirectionState::Unknown, "{verdict:?}");
    assert!(verdict.reasons[0].contains("does not list filters of traffic control"), "{verdict:?}");
    Ok(())
}

/// Adds a filter on egress with a program of classic BPF of 4096 instructions, the most that it may have; tc(8) sends no
/// message of this length.
fn add_longest_filter(interface: u32) {
    const RTM_NEWTFILTER: u16 = 44;
    // NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE.
    const FLAGS: u16 = 0x605;
    // TCA_KIND, TCA_OPTIONS, TCA_BPF_OPS_LEN, TCA_BPF_OPS.
    let attribute = |kind: u16, value: &[u8]| {
        let length = u16::try_from(4 + value.len()).unwrap();
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value, &padding].concat()
    };
    // `ret 0` behind instructions of zeros.
    let program = [vec![0; 8 * 4095], 6_u64.to_ne_bytes().to_vec()].concat();
    let options = [attribute(4, &4096_u16.to_ne_bytes()), attribute(5, &program)].concat();
    // `struct tcmsg`: the parent is egress of clsact; priority 1, ETH_P_ALL.
    let header = [0, interface, 0, 0xffff_fff3, 0x0001_0000 | u32::from(3_u16.to_be())];
    let body =
        [header.map(u32::to_ne_bytes).concat(), attribute(1, b"bpf\0"), attribute(2, &options)].concat();
    let length = u32::try_from(16 + body.len()).unwrap().to_ne_bytes();
    let message = [&length[..], &RTM_NEWTFILTER.to_ne_bytes(), &FLAGS.to_ne_bytes(), &[0; 8], &body].concat();
    let protocol = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    send(socket.as_raw_fd(), &message, MsgFlags::empty()).unwrap();
    let mut reply = [0; 64];
    let length = recv(socket.as_raw_fd(), &mut reply, MsgFlags::empty()).unwrap();
    // The acknowledgement: NLMSG_ERROR without an error.
    assert!(length >= 20 && reply[4] == 2 && reply[16..20] == [0; 4], "{reply:?}");
}

#[test]
fn a_program_of_traffic_control_is_named() -> Result<(), Failure> {
    let pod = Pod::in_own_cgroup()?;
    let directory = TestDir::new("bpffs");
    let done = pod.redirected.topology.at(Location::Pod).run(|| {
        unshare_mounts().unwrap();
        mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
        let program = load(bpf::CLASSIFIER, "gybe_test", &returning(0)).unwrap();
        let path = directory.join("program");
        bpf::pin(&program, &path).unwrap();
        let add = "tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress bpf da object-pinned";
        run("sh", &["-ec", &format!("{add} {}", path.display())], "")
    })??;
    assert_eq!(done.code, Some(0), "{done:?}");
    let verdict = pod.verdict()?;
    assert_eq!(verdict.state, RedirectionState::Unknown, "{verdict:?}");
    let reason = &verdict.reasons[0];
    assert!(
        reason.contains("gybe_test") && reason.contains("at tc ingress of eth0 may rewrite"),
        "{verdict:?}"
    );
    Ok(())
}
