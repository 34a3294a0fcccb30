//! Connections of enrolled pods, through the stand-in, with the client's address. The rules are those that istio-cni
//! writes, loaded by nft and ip: they judge the stand-in, not Gybe.

use crate::fixture::{Server, ready, socket};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::namespace::sh;
use gybe_integration::ztunnel::{Mesh, Ztunnel};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Transport;
use gybe_test_support::{PATIENCE, TestDir};
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

/// What istio-cni writes into an ambient pod with DNS capture, except what concerns probes and virtual interfaces.
const RULES: &str = r#"
nft -f - <<'END'
table inet referee {
    chain mangle-prerouting { type filter hook prerouting priority -150
        meta mark & 0xfff == 0x539 ct mark set ct mark & 0xfffff000 | 0x111; }
    chain mangle-output { type route hook output priority -150
        ct mark & 0xfff == 0x111 meta mark set ct mark; }
    chain nat-prerouting { type nat hook prerouting priority -100
        ip daddr != 127.0.0.1/32 tcp dport != 15008 meta mark & 0xfff != 0x539 redirect to :15006
        ip6 daddr != ::1/128 tcp dport != 15008 meta mark & 0xfff != 0x539 redirect to :15006; }
    chain nat-output { type nat hook output priority -100
        oifname != "lo" meta mark & 0xfff != 0x539 udp dport 53 redirect to :15053
        meta l4proto tcp meta mark & 0xfff == 0x111 accept
        oifname "lo" ip daddr != 127.0.0.1/32 accept
        oifname "lo" ip6 daddr != ::1/128 accept
        meta l4proto tcp ip daddr != 127.0.0.1/32 meta mark & 0xfff != 0x539 redirect to :15001
        meta l4proto tcp ip6 daddr != ::1/128 meta mark & 0xfff != 0x539 redirect to :15001; }
    chain raw-output { type filter hook output priority -300
        udp dport 53 meta mark & 0xfff == 0x539 ct zone set 1; }
    chain raw-prerouting { type filter hook prerouting priority -300
        udp sport 53 meta mark & 0xfff != 0x539 ct zone set 1; }
}
END
for family in -4 -6; do
    ip $family rule add fwmark 0x111/0xfff pref 32764 lookup 100
    ip $family route add local default dev lo table 100
done
"#;

const PORT: u16 = 8080;

fn by_and_source(reply: &str) -> String {
    match reply.parse() {
        Ok(ConnectionOutcome::Replied(reply)) => format!("{} src={}", reply.by, reply.source),
        other => panic!("{reply}: {other:?}"),
    }
}

/// Connects from a namespace; returns what the listener there replies.
fn request(from: &Namespace, to: SocketAddr) -> String {
    from.run(|| {
        let mut reply = String::new();
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_string(&mut reply).unwrap();
        by_and_source(&reply)
    })
    .unwrap()
}

/// Sends a datagram from a namespace; returns the reply.
fn query(from: &Namespace, to: SocketAddr) -> String {
    from.run(|| {
        let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // The reply comes from the address that was asked, or it is not delivered.
        socket.connect(to).unwrap();
        socket.send(b"query").unwrap();
        let mut reply = [0; 512];
        let length = socket.recv(&mut reply).unwrap();
        by_and_source(&String::from_utf8_lossy(&reply[..length]))
    })
    .unwrap()
}

#[test]
fn connections_pass_the_stand_in_and_keep_their_clients_address() {
    let directory = TestDir::new("zds-forwarding");
    let [a, b, c] = std::array::from_fn(|_| Arc::new(Namespace::new().unwrap()));
    let end = |namespace, name, addresses: [&str; 2]| LinkEnd {
        namespace,
        name: InterfaceName::parse(name).unwrap(),
        addresses: addresses.map(|address| address.parse().unwrap()).to_vec(),
    };
    let link = |left, right| join(&left, &right).unwrap();
    link(end(&a, "b", ["10.7.1.1/24", "fd07:1::1/64"]), end(&b, "a", ["10.7.1.2/24", "fd07:1::2/64"]));
    link(end(&c, "b", ["10.7.2.3/24", "fd07:2::3/64"]), end(&b, "c", ["10.7.2.2/24", "fd07:2::2/64"]));
    link(end(&a, "c", ["10.7.3.1/24", "fd07:3::1/64"]), end(&c, "a", ["10.7.3.3/24", "fd07:3::3/64"]));
    let application = |namespace, name, transport, port| {
        let ports = vec![ListeningPort { transport, port, address: ListenAddress::Any }];
        Listeners::start(namespace, Owner { uid: 0, gid: 0 }, ServerName::Name(name), ports).unwrap()
    };
    let _b = application(&b, "b", Transport::Tcp, PORT);
    let _c = application(&c, "c", Transport::Tcp, PORT);
    let _dns = application(&c, "dns", Transport::Udp, 53);
    let server = Server::start(&directory);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let mesh = Mesh {
        addresses: ["10.7.1.2", "fd07:1::2"].map(address).into(),
        resolver: Some("10.7.3.3:53".parse().unwrap()),
        is_strict: false,
    };
    let ztunnel = Ztunnel::start(&socket(&directory), Default::default(), mesh).unwrap();
    ready(&ztunnel);
    server.add("a", &a).unwrap();
    server.add("b", &b).unwrap();
    for pod in [&a, &b] {
        pod.run(|| sh(RULES)).unwrap();
    }

    let to = |text: &str| SocketAddr::new(address(text), PORT);
    for (from, destination, reply, forwarded) in [
        // By HBONE between pods of the mesh.
        (
            &a,
            "10.7.1.2",
            "b src=10.7.1.1",
            vec!["15001 10.7.1.1 > 10.7.1.2:8080", "15008 10.7.1.1 > 10.7.1.2:8080"],
        ),
        (
            &a,
            "fd07:1::2",
            "b src=fd07:1::1",
            vec!["15001 fd07:1::1 > [fd07:1::2]:8080", "15008 fd07:1::1 > [fd07:1::2]:8080"],
        ),
        // Plain text from and to others.
        (&c, "10.7.2.2", "b src=10.7.2.3", vec!["15006 10.7.2.3 > 10.7.2.2:8080"]),
        (&c, "fd07:2::2", "b src=fd07:2::3", vec!["15006 fd07:2::3 > [fd07:2::2]:8080"]),
        (&a, "10.7.3.3", "c src=10.7.3.1", vec!["15001 10.7.3.1 > 10.7.3.3:8080"]),
        (&a, "fd07:3::3", "c src=fd07:3::1", vec!["15001 fd07:3::1 > [fd07:3::3]:8080"]),
        // To itself.
        (&b, "10.7.1.2", "b src=10.7.1.2", vec![]),
    ] {
        let before = ztunnel.observed().forwarded.len();
        assert_eq!(request(from, to(destination)), reply, "{destination}");
        let mut lines = ztunnel.observed().forwarded.split_off(before);
        // Both proxies log a connection by HBONE, in either order.
        lines.sort();
        assert_eq!(lines, forwarded, "{destination}");
    }
    // Nothing listens at these addresses' port 53.
    for (destination, client) in [("10.7.1.2", "10.7.1.1"), ("fd07:1::2", "fd07:1::1")] {
        let before = ztunnel.observed().forwarded.len();
        assert_eq!(query(&a, SocketAddr::new(address(destination), 53)), "dns src=10.7.3.1");
        let lines = ztunnel.observed().forwarded;
        assert_eq!(lines[before..], [format!("15053 {client} > 10.7.3.3:53")]);
    }
    // Without ztunnel nothing passes.
    drop(ztunnel);
    let refused = a.run(|| TcpStream::connect_timeout(&to("10.7.1.2"), PATIENCE)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
