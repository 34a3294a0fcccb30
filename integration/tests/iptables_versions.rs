//! ADD, CHECK and ADD again with the iptables of four Debian releases, and what their tools list and delete of Gybe's
//! rules. `integration/iptables/setup.sh` unpacks them; they run on this machine's kernel, in namespaces made for them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up must stop")]
#![allow(clippy::disallowed_methods, reason = "what the backend wrote is judged by the programs themselves")]

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::namespace::unshare_mounts;
use gybe_integration::programs::run;
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::Iptables;
use gybe_netfilter::model::inventory::PreviousRules;
use gybe_netfilter::model::policy::{Destinations, InterfaceName};
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::model::ruleset::Ruleset;
use gybe_netfilter::nft::Nft;
use nix::mount::{MsFlags, mount};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VARIANTS: [Engine; 2] = [Engine::Legacy, Engine::NfTables];

/// The rules of every policy of the flow vectors, and of one with lists in chains of their own.
fn every_ruleset() -> Vec<(String, Ruleset)> {
    let mut policies: Vec<_> =
        vectors::all().unwrap().into_iter().map(|vector| (vector.name, vector.policy)).collect();
    let mut lists = policies.iter().find(|(name, _)| name == "dns-all-tproxy-dual").unwrap().1.clone();
    lists.virtual_interfaces = (0..40).map(|n| InterfaceName::parse(&format!("vm{n}")).unwrap()).collect();
    let networks = (0..50).flat_map(|n| [format!("10.{n}.0.0/24"), format!("fd00:{n}::/32")]);
    lists.outbound.included_to =
        Destinations::Only(networks.map(|text| text.parse::<ipnet::IpNet>().unwrap()).collect());
    policies.push(("long lists".to_owned(), lists));
    policies.into_iter().map(|(name, policy)| (name, compile(&policy))).collect()
}

fn ruleset(name: &str) -> Ruleset {
    every_ruleset().into_iter().find(|(other, _)| other == name).unwrap().1
}

/// What a CHECK finds missing or changed.
fn differences(context: &str, backend: &Iptables, rules: &Ruleset) -> Vec<String> {
    let found = backend.inspect().unwrap_or_else(|error| panic!("{context}: {error:?}"));
    backend.desired(rules).unwrap().differences(&found).iter().map(ToString::to_string).collect()
}

fn assert_there(context: &str, backend: &Iptables, rules: &Ruleset) {
    let differences = differences(context, backend, rules);
    assert!(differences.is_empty(), "{context}: {differences:#?}");
}

fn apply(context: &str, backend: &dyn Backend, rules: &Ruleset) -> PreviousRules {
    gybe_netfilter::apply::apply(backend, rules)
        .unwrap_or_else(|error| panic!("{context}: {error:?}"))
        .previous
}

/// Runs ADD, CHECK, ADD and the removal for each ruleset, in the namespace of this thread.
fn add_check_add(release: &Release, variant: Engine, rulesets: &[(String, Ruleset)]) {
    let backend = release.backend(variant);
    for (name, rules) in rulesets {
        let context = format!("{} {} {name}", release.version, variant.iptables());
        assert_eq!(apply(&context, &backend, rules), PreviousRules::None, "{context}");
        assert_there(&context, &backend, rules);
        release.assert_version(&release.save(variant));
        assert_eq!(apply(&context, &backend, rules), PreviousRules::Same, "{context}");
        backend.remove().unwrap();
        let left = release.save(variant);
        assert!(!left.contains("ISTIO_") && !left.contains("GYBE"), "{context}: {left}");
    }
}

fn every_policy_with(suite: &str) {
    let release = Release::of(suite);
    for variant in VARIANTS {
        Namespace::new().unwrap().run(|| add_check_add(&release, variant, &every_ruleset())).unwrap();
    }
}

#[test]
fn iptables_1_8_7_writes_every_policy_and_reads_it_back() {
    every_policy_with("bullseye");
}

#[test]
fn iptables_1_8_9_writes_every_policy_and_reads_it_back() {
    every_policy_with("bookworm");
}

#[test]
fn iptables_1_8_11_writes_every_policy_and_reads_it_back() {
    every_policy_with("trixie");
}

#[test]
fn the_newest_iptables_writes_every_policy_and_reads_it_back() {
    every_policy_with("sid");
}

/// The control: 1.8.7 prints numbers there, in its nft variant alone.
#[test]
fn without_etc_protocols_every_version_reads_its_own_rules() {
    let rulesets =
        ["inject-default-dual", "dns-all-tproxy-dual"].map(|name| (name.to_owned(), ruleset(name)));
    for (suite, version) in VERSIONS {
        let release = Release::of(suite);
        for variant in VARIANTS {
            in_namespaces_without_protocols(|| {
                add_check_add(&release, variant, &rulesets);
                apply(version, &release.backend(variant), &rulesets[1].1);
                let numbers = release.save(variant).contains(" -p 6 ");
                assert_eq!(
                    numbers,
                    (version, variant) == ("1.8.7", Engine::NfTables),
                    "{version} {variant:?}"
                );
            });
        }
    }
}

/// Runs `work` on a thread of new network and mount namespaces with an empty file at /etc/protocols.
fn in_namespaces_without_protocols(work: impl FnOnce() + Send) {
    let without = || {
        unshare_mounts().unwrap();
        mount(Some("/dev/null"), "/etc/protocols", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        work();
    };
    Namespace::new().unwrap().run(without).unwrap();
}

/// The programs of a node may change between a pod's ADD and its CHECK. 1.8.7 has no words for matches that
/// newer versions write without xt_ modules: its CHECK finds other rules, and its ADD writes them again.
#[test]
fn a_version_finds_the_rules_of_another_whole_except_1_8_7_those_of_newer_ones() {
    let rules = ruleset("dns-all-tproxy-dual");
    for (written_by, written) in VERSIONS {
        for (read_by, read) in VERSIONS {
            for variant in VARIANTS {
                let context = format!("{} {written}, read by {read}", variant.iptables());
                let (writer, reader) =
                    (Release::of(written_by).backend(variant), Release::of(read_by).backend(variant));
                let readable = variant == Engine::Legacy || read != "1.8.7" || written == "1.8.7";
                let changed = || {
                    apply(&context, &writer, &rules);
                    assert_eq!(differences(&context, &reader, &rules).is_empty(), readable, "{context}");
                    assert_eq!(
                        apply(&context, &reader, &rules) == PreviousRules::Same,
                        readable,
                        "{context}"
                    );
                    assert_there(&context, &reader, &rules);
                };
                Namespace::new().unwrap().run(changed).unwrap();
            }
        }
    }
}

/// A node's own tools may be older than the rules: an operator lists and deletes them, and kube-proxy lists all tables.
#[test]
fn nft_of_every_release_lists_and_deletes_what_each_backend_writes() {
    for (suite, _) in VERSIONS {
        let release = Release::of(suite);
        let by_iptables = release.backend(Engine::NfTables);
        for (name, rules) in every_ruleset() {
            let context = format!("{suite}, {name}");
            let listed = || {
                apply(&context, &Nft, &rules);
                let text = release.nft(&["list", "ruleset"]);
                assert!(text.contains("table inet gybe {"), "{context}: {text}");
                for (_, rule) in rules.rules() {
                    let comment = format!("comment \"{}\"", rule.id.0);
                    assert!(text.contains(&comment), "{context}: no {comment} in {text}");
                }
                release.nft(&["-j", "list", "ruleset"]);
                release.nft(&["delete", "table", "inet", "gybe"]);
                assert_eq!(release.nft(&["list", "ruleset"]), "", "{context}");
                apply(&context, &by_iptables, &rules);
                assert!(release.nft(&["list", "ruleset"]).contains("ISTIO_"), "{context}");
                release.nft(&["flush", "ruleset"]);
                assert!(by_iptables.inspect().unwrap().is_empty(), "{context}");
            };
            Namespace::new().unwrap().run(listed).unwrap();
        }
    }
}

/// As `iptables -F` and `iptables -X` in each table.
#[test]
fn iptables_of_every_release_deletes_what_it_wrote_with_both_variants() {
    for (suite, _) in VERSIONS {
        let release = Release::of(suite);
        for variant in VARIANTS {
            let backend = release.backend(variant);
            for (name, rules) in every_ruleset() {
                let context = format!("{suite}, {}, {name}", variant.iptables());
                let deleted = || {
                    apply(&context, &backend, &rules);
                    assert!(release.save(variant).contains("ISTIO_"), "{context}");
                    release.restore(variant, "*raw\nCOMMIT\n*mangle\nCOMMIT\n*nat\nCOMMIT\n");
                    assert!(backend.inspect().unwrap().is_empty(), "{context}: {}", release.save(variant));
                };
                Namespace::new().unwrap().run(deleted).unwrap();
            }
        }
    }
}

/// Debian's suites and the version of iptables in each. The last suite is unstable: its version may be newer.
const VERSIONS: [(&str, &str); 4] =
    [("bullseye", "1.8.7"), ("bookworm", "1.8.9"), ("trixie", "1.8.11"), ("sid", "1.8.13")];

struct Release {
    suite: &'static str,
    pub version: &'static str,
    programs: PathBuf,
}

impl Release {
    fn of(suite: &str) -> Self {
        let (suite, version) = VERSIONS.into_iter().find(|(name, _)| *name == suite).unwrap();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let programs = target.join("iptables").join(suite).join("programs");
        assert!(programs.is_dir(), "no {}; run integration/iptables/setup.sh", programs.display());
        Self { suite, version, programs }
    }

    fn backend(&self, variant: Engine) -> Iptables {
        Iptables::find_in(variant, std::slice::from_ref(&self.programs))
            .unwrap()
            .with_deadline(Duration::from_secs(120))
    }

    /// What the variant's programs print of both families in the namespace of this thread.
    fn save(&self, variant: Engine) -> String {
        ["iptables", "ip6tables"].map(|family| self.save_of(family, variant)).concat()
    }

    fn save_of(&self, family: &str, variant: Engine) -> String {
        let name = format!("{family}-{}-save", variant.iptables().trim_start_matches("iptables-"));
        let output = Command::new(self.programs.join(&name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Replaces the tables of both families in the namespace of this thread by `tables`.
    fn restore(&self, variant: Engine, tables: &str) {
        for family in ["iptables", "ip6tables"] {
            let name = format!("{family}-{}-restore", variant.iptables().trim_start_matches("iptables-"));
            let program = self.programs.join(&name);
            let ran = run(&program.to_string_lossy(), &[], tables).unwrap();
            assert_eq!(ran.code, Some(0), "{name}: {}", ran.err);
        }
    }

    /// What this release's nft prints in the namespace of this thread.
    fn nft(&self, arguments: &[&str]) -> String {
        let ran = run(&self.programs.join("nft").to_string_lossy(), arguments, "").unwrap();
        assert_eq!(ran.code, Some(0), "{} nft {arguments:?}: {}", self.suite, ran.err);
        ran.out
    }

    /// Fails unless `saved` says that the programs of this version printed it.
    fn assert_version(&self, saved: &str) {
        let first = saved.lines().next().unwrap();
        let found = first.split(' ').find_map(|word| word.strip_prefix('v')).unwrap();
        let same = found == self.version;
        assert!(
            same || (self.suite == "sid" && numbers(found) > numbers(self.version)),
            "{}: {first}",
            self.suite
        );
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap()).collect()
}
