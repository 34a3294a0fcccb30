//! Ambient pods of istio-cni whose address is missing in its sets in the node's network namespace, by which it exempts the
//! kubelet's probes.

use crate::node::{Node, Pod};
use crate::take_over::{Form, annotated};
use gybe_integration::namespace::sh;
use gybe_integration::programs::ours;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use serde_json::{Value, json};
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// istio-cni's table in the node's namespace, without the addresses.
const TABLE: &str = "nft -f - <<'END'
table inet istio-ambient-nat {
    set istio-inpod-probes-v4 { type ipv4_addr; }
    set istio-inpod-probes-v6 { type ipv6_addr; }
    chain postrouting { type nat hook postrouting priority 100; jump istio-postrouting; }
    chain istio-postrouting {
        meta l4proto tcp meta skuid 0 ip daddr @istio-inpod-probes-v4 counter snat to 169.254.7.127
        meta l4proto tcp meta skuid 0 ip6 daddr @istio-inpod-probes-v6 counter snat to fd16:9254:7127:1337:ffff:ffff:ffff:ffff
    }
}
END";

#[derive(Debug, Clone, Copy)]
enum Sets {
    OfNft,
    OfIpset,
}

impl Sets {
    fn create(self) {
        match self {
            Self::OfNft => drop(sh(TABLE)),
            Self::OfIpset => {
                for (name, family) in [("istio-inpod-probes-v4", 2), ("istio-inpod-probes-v6", 10)] {
                    // IPSET_ATTR_TYPENAME, _REVISION with comments, _FAMILY and _DATA.
                    let form = [attribute(3, b"hash:ip\0"), attribute(4, &[3]), attribute(5, &[family])];
                    ipset(2, name, &[form.concat(), attribute(NESTED | 7, &[])].concat());
                }
            }
        }
    }

    fn add(self, address: IpAddr) {
        let (name, kind, octets) = match address {
            IpAddr::V4(v4) => ("istio-inpod-probes-v4", 1, v4.octets().to_vec()),
            IpAddr::V6(v6) => ("istio-inpod-probes-v6", 2, v6.octets().to_vec()),
        };
        match self {
            Self::OfNft => {
                let element = format!("{{ {address} comment \"uid\" }}");
                sh(&format!("nft add element inet istio-ambient-nat {name} '{element}'"));
            }
            Self::OfIpset => {
                let octets = attribute(NETWORK_ORDER | kind, &octets);
                ipset(9, name, &attribute(NESTED | 7, &attribute(NESTED | 1, &octets)));
            }
        }
    }
}

const NESTED: u16 = 1 << 15;
const NETWORK_ORDER: u16 = 1 << 14;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends a command of ipset, IPSET_CMD_CREATE (2) or IPSET_CMD_ADD (9), in the calling thread's namespace
/// (include/uapi/linux/netfilter/ipset/ip_set.h, v6.18).
fn ipset(command: u16, set: &str, more: &[u8]) {
    let body = [attribute(1, &[6]), attribute(2, format!("{set}\0").as_bytes()), more.to_vec()].concat();
    // NFNL_SUBSYS_IPSET; NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL and NLM_F_CREATE.
    let (kind, flags) = (6 << 8 | command, 0x605_u16);
    let length = u32::try_from(20 + body.len()).unwrap();
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 12]].concat();
    let protocol = SockProtocol::NetlinkNetFilter;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    send(socket.as_raw_fd(), &[header, body].concat(), MsgFlags::empty()).unwrap();
    let mut reply = [0; 1024];
    recv(socket.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT).unwrap();
    assert_eq!(i32::from_ne_bytes(reply[16..20].try_into().unwrap()), 0, "ipset command {command} for {set}");
}

#[test]
fn an_ambient_pod_whose_address_is_missing_in_istio_cnis_set_is_noted() {
    for (form, sets) in [(Form::Nft, Sets::OfNft), (Form::IptablesNft, Sets::OfIpset)] {
        let node = Node::new(&format!("probe-set-{form:?}"), "auto");
        let [dual, single, of_gybe] = [1, 2, 3].map(|number| annotated(&node, number));
        form.write(&dual);
        form.write(&single);
        let path = of_gybe.netns.path().display().to_string();
        let arguments = ["apply", "--netns", &path, "--backend", "nft", "--policy", "-"];
        assert_eq!(ours("gybe", &arguments, r#"{ "kind": "ambient" }"#).unwrap().code, Some(0));
        // The IPv6 address of the second pod is not of its ADD, as one of a router's advertisement.
        for pod in [&dual, &single] {
            pod.sh(&format!("ip address add fd00::{}/64 dev eth0 nodad", pod.number));
        }
        let cached = node.result(&dual, "eth0");
        let mut info: Value = serde_json::from_str(&fs::read_to_string(&cached).unwrap()).unwrap();
        info["result"]["ips"].as_array_mut().unwrap().push(json!({ "address": "fd00::1/64" }));
        fs::write(&cached, info.to_string()).unwrap();

        let judged = |arguments: &[&str], pod: &Pod| {
            let ran = node.gybe(&[arguments, &["--json"]].concat());
            let json: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
            json["sandboxes"]
                .as_array()
                .unwrap()
                .iter()
                .find(|one| one["name"] == pod.name())
                .unwrap()
                .clone()
        };
        let lacking = |arguments: &[&str], pod: &Pod| {
            let faults = &judged(arguments, pod)["proxy_faults"];
            let texts = faults.as_array().unwrap().iter().map(|fault| fault.as_str().unwrap());
            let of_set = texts.filter(|text| text.contains("istio-inpod-probes"));
            of_set.map(|text| text.split(": ").next().unwrap().to_owned()).collect::<Vec<String>>()
        };
        let verify = |pod: &Pod| lacking(&["verify", "--all"], pod);
        let missing = |sets: &str| vec![format!("the pod's address is not in the node's set {sets}")];
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        let none = Vec::<String>::new();
        assert_eq!(
            [&dual, &single, &of_gybe].map(verify),
            [&none, &none, &none].map(Clone::clone),
            "{form:?}"
        );

        let silent = &judged(&["verify", "--all"], &dual)["proxy_silent_on"];
        assert_eq!(*silent, json!([15001, 15006, 15008]), "{form:?}: ztunnel does not listen");

        node.own.run(|| sets.create()).unwrap();
        let (v4, v6) = (missing("istio-inpod-probes-v4"), missing("istio-inpod-probes-v6"));
        let both = missing("istio-inpod-probes-v4 and istio-inpod-probes-v6");
        assert_eq!([&dual, &single, &of_gybe].map(verify), [both, v4.clone(), none.clone()], "{form:?}");
        let name = format!("shop/{}", single.name());
        assert_eq!(lacking(&["verify", "--pod", &name], &single), v4, "{form:?}");

        node.own.run(|| sets.add(of(&dual.address()))).unwrap();
        assert_eq!([&dual, &single].map(verify), [v6, v4], "{form:?}");
        let add = |addresses: [&str; 2]| addresses.iter().for_each(|address| sets.add(of(address)));
        node.own.run(|| add(["fd00::1", &single.address()])).unwrap();
        assert_eq!([&dual, &single].map(verify), [none.clone(), none], "{form:?}");
    }
}
