#![allow(warnings, clippy::all, reason = "scratch")]
use gybe_installer::policy_file::PolicyFile;
use gybe_netfilter::{compile::compile, policy::*, ruleset::*, trace::*};
use serde_json::Value;
use std::net::*;
fn main() {
    let control: Value = serde_json::from_str(
        &std::fs::read_to_string("/work/shared/vectors/rules/flows/_no_rules.json").unwrap(),
    )
    .unwrap();
    let mut bad = 0;
    let mut total = 0;
    let mut alive: std::collections::BTreeMap<String, bool> = Default::default();
    for e in std::fs::read_dir("/work/shared/vectors/rules/flows").unwrap() {
        let p = e.unwrap().path();
        let n = p.file_stem().unwrap().to_string_lossy().to_string();
        if n.starts_with('_') || n == "README" || p.extension().unwrap() != "json" {
            continue;
        }
        let v: Value = serde_json::from_str(&std::fs::read_to_string(&p).unwrap()).unwrap();
        let pol = PolicyFile::parse(&v["options"].to_string())
            .unwrap()
            .policy(&["10.244.0.10".parse().unwrap()])
            .unwrap();
        let rules = compile(&pol);
        let ids: Vec<_> = rules.rules().map(|(_, r)| r.id.0).collect();
        let base_rules = rules.clone();
        let mut variants = vec![(None, rules.clone())];
        for id in ids {
            variants.push((Some(id), rules.without(id).unwrap()));
        }
        for (mutant, rules) in variants {
            if let Some(id) = mutant {
                alive.entry(id.to_string()).or_insert(true);
            }
            for f in v["flows"].as_array().unwrap() {
                let id = f["id"].as_str().unwrap();
                let exp = f.get("expect_iptables").or(f.get("expect")).unwrap().as_str().unwrap();
                let dst: IpAddr = f["dst"].as_str().unwrap().parse().unwrap();
                let port = f["port"].as_u64().unwrap() as u16;
                let v6 = dst.is_ipv6();
                let own: &[&str] = &[
                    "10.244.0.10",
                    "192.168.77.1",
                    "172.30.0.10",
                    "fd00:10::10",
                    "fd00:77::1",
                    "fd00:30::10",
                ];
                let local = dst.is_loopback() || own.contains(&dst.to_string().as_str());
                let from = f["from"].as_str().unwrap();
                let ifn = |n: &str| InterfaceName::parse(n).unwrap();
                let src: IpAddr = f
                    .get("src")
                    .map(|s| s.as_str().unwrap().to_string())
                    .unwrap_or_else(|| match from {
                        "pod" => {
                            if dst.is_loopback() {
                                dst.to_string()
                            } else if v6 {
                                "fd00:10::10".into()
                            } else {
                                "10.244.0.10".into()
                            }
                        }
                        "vm" => {
                            if v6 {
                                "fd00:77::2".into()
                            } else {
                                "192.168.77.2".into()
                            }
                        }
                        _ => {
                            if v6 {
                                "fd00:10::1".into()
                            } else {
                                "10.244.0.1".into()
                            }
                        }
                    })
                    .parse()
                    .unwrap();
                let sport = f.get("sport").map(|s| s.as_u64().unwrap() as u16).unwrap_or(45678);
                let dir = match from {
                    "pod" => Direction::Leaves {
                        by: ifn(if local {
                            "lo"
                        } else if id.contains("net1") {
                            "net1"
                        } else {
                            "eth0"
                        }),
                    },
                    "peer" => Direction::Arrives { by: ifn("eth0") },
                    "vm" => Direction::Arrives { by: ifn("eth1") },
                    _ => Direction::Arrives { by: ifn("net1") },
                };
                let proto = if f["proto"] == "tcp" { Transport::Tcp } else { Transport::Udp };
                let mut pk =
                    Packet::first(dir, proto, SocketAddr::new(src, sport), SocketAddr::new(dst, port));
                if from == "pod" {
                    pk = pk.owned_by(Owner {
                        uid: f["uid"].as_u64().unwrap() as u32,
                        gid: f["gid"].as_u64().unwrap() as u32,
                    });
                }
                if let Some(m) = f.get("mark") {
                    pk = pk.marked(m.as_u64().unwrap() as u32);
                }
                let t = trace(&rules, &pk);
                let without = control[id].as_str().unwrap();
                let who = match t.fate {
                    Fate::Untouched => without.split(' ').next().unwrap().to_string(),
                    Fate::Redirected(p) | Fate::Intercepted(p) => format!("envoy:{p}"),
                    Fate::Dropped => "timeout".into(),
                };
                let expwho = exp.split(' ').next().unwrap();
                let ok = who == expwho;
                if let Some(m) = mutant {
                    let base = trace(&base_rules, &pk).fate;
                    if base != t.fate && !id.contains("orig-src") {
                        alive.insert(m.to_string(), false);
                    }
                    continue;
                }
                total += 1;
                if !ok {
                    bad += 1;
                    println!(
                        "{n} {id}: trace {:?} by {:?} expected {exp} (without {without})",
                        t.fate, t.decided_by
                    );
                }
            }
        }
    }
    println!("{bad} of {total}");
    // survivors need baseline: list those never killed
    for (k, a) in alive {
        if a {
            println!("survives {k}")
        }
    }
}
