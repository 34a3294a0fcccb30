//! `gybe trace` in a namespace: connections that the kernel refuses before any rule.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::programs::{ours, run};

#[test]
fn a_refused_connection_names_the_kind_of_route_and_an_absent_interface_is_an_error() -> Result<(), Failure> {
    let pod = Namespace::new()?;
    let script = "ip link add eth0 type veth peer name peer0 && ip link set eth0 up && ip addr add 10.244.0.10/24 dev eth0 && \
                  for kind in unreachable prohibit blackhole; do \
                  ip route add $kind 10.$((n = n + 1)).0.0/16; ip route add $kind fd00:$n::/32; done";
    let planted = pod.run(|| run("sh", &["-c", script], ""))??;
    assert_eq!(planted.code, Some(0), "{planted:?}");
    let netns = pod.path().to_string_lossy().into_owned();
    let trace = |words: &str| {
        let words: Vec<&str> = ["trace", "--netns", &netns].into_iter().chain(words.split(' ')).collect();
        ours("gybe", &words, "")
    };
    for (to, why) in [
        ("10.1.2.3:80", "an `unreachable` route (EHOSTUNREACH"),
        ("[fd00:1::1]:80", "an `unreachable` route (EHOSTUNREACH"),
        ("10.2.2.3:80", "a `prohibit` route (EACCES"),
        ("[fd00:2::1]:80", "a `prohibit` route (EACCES"),
        ("10.3.2.3:80", "a `blackhole` route, or a source that is not an address of the namespace (EINVAL"),
        ("[fd00:3::1]:80", "a `blackhole` route"),
        ("10.9.2.3:80", "no route (ENETUNREACH"),
    ] {
        let traced = trace(&format!("out tcp {to}"))?;
        assert!(traced.out.contains(&format!("before any rule: {why}")), "{to}: {traced:?}");
    }
    let bound = trace("out tcp 10.244.0.11:80 --bind-to eth0")?;
    assert!(bound.code == Some(0) && bound.out.contains(" by eth0"), "{bound:?}");
    for words in ["--bind-to eth9", "--bind-to eth9 --iface eth0"] {
        let absent = trace(&format!("out tcp 10.244.0.11:80 {words}"))?;
        assert_eq!(absent.code, Some(2), "{absent:?}");
        let says =
            ["the network namespace has no interface eth9, which --bind-to names", "hint: it has lo, "];
        assert!(says.iter().all(|part| absent.err.contains(part)), "{absent:?}");
    }
    Ok(())
}
