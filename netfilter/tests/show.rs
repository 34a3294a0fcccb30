//! The injector's default as text, for a reviewer's eye. What it does is asked elsewhere.

use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InvalidPackets, LoopbackCidr, Mode, Outbound,
    Owners, Port, PortSet, RedirectPolicy,
};
use gybe_netfilter::show::show;
use std::collections::BTreeSet;

#[test]
fn the_injectors_default_reads_like_this() {
    let port = |number| Port::new(number).unwrap();
    let policy = RedirectPolicy {
        mode: Mode::Redirect,
        outbound_port: port(15001),
        inbound_port: port(15006),
        tunnel_port: port(15008),
        proxy_uids: Owners::new(1337, []),
        proxy_gids: Owners::new(1337, []),
        inbound: Inbound::AllBut([15020, 15021, 15090].into_iter().collect()),
        outbound: Outbound {
            excluded_ports: PortSet::default(),
            excluded_to: CidrSet::default(),
            included_ports: PortSet::default(),
            included_to: Destinations::All,
            groups: Groups::AllBut(BTreeSet::new()),
        },
        excluded_interfaces: BTreeSet::new(),
        virtual_interfaces: BTreeSet::new(),
        dns: Dns::Off,
        invalid: InvalidPackets::Pass,
        loopback: LoopbackCidr::default(),
        families: Families::V4AndV6,
    };
    assert_eq!(show(&compile(&policy)), include_str!("golden/injector-default.nft"));
}
