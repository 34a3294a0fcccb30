//! Every recorded connection, with the rules written by iptables: the fate the kernel gave it then.

#![allow(clippy::disallowed_methods, reason = "routes are not what is tested here")]

use gybe_integration::run::{Rules, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Place};
use gybe_netfilter::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::policy::{Families, Mode, RedirectPolicy};
use std::process::Command;

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}

fn routes(policy: &RedirectPolicy) {
    let families: &[&str] = match policy.families {
        Families::V4Only => &["-4"],
        Families::V4AndV6 => &["-4", "-6"],
    };
    if policy.families == Families::V4AndV6 {
        ip("-6 addr add ::6/128 dev lo");
    }
    if let Mode::Tproxy { mark, route_table } = policy.mode {
        for family in families {
            ip(&format!("{family} rule add fwmark {mark} lookup {route_table}"));
            ip(&format!("{family} route add local default dev lo table {route_table} scope host"));
        }
    }
}

fn every_flow(variant: Variant) {
    let backend = Iptables::find(variant).unwrap();
    let mut all = Vec::new();
    for vector in vectors::all().unwrap() {
        let world = Topology::raise(vector.policy.mode, &vector.flows).unwrap();
        let rules = compile(&vector.policy);
        world.at(Place::Pod).run(|| {
            backend.apply(&rules).unwrap();
            routes(&vector.policy);
        }).unwrap();
        let found = differences(&world, &vector.flows, Rules::There).unwrap();
        all.extend(found.iter().map(|difference| format!("{}: {difference}", vector.name)));
    }
    assert!(all.is_empty(), "{} differences: {all:#?}", all.len());
}

#[test]
fn iptables_legacy() {
    every_flow(Variant::Legacy);
}

#[test]
fn iptables_nft() {
    every_flow(Variant::Nft);
}
