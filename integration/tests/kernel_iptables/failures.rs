//! iptables programs that fail, hang or wait: the namespace does not change, and the error names the cause.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::backend::PreviousRules;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::ruleset::Family;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Programs of a variant in a directory of their own, one of them replaced by a shell script.
struct Programs(PathBuf);

impl Programs {
    fn with(variant: Variant, replaced: &str, script: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("gybe-programs-{}-{number}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let name = variant.name().trim_start_matches("iptables-");
        for program in ["iptables", "ip6tables"] {
            for verb in ["save", "restore"] {
                let program = format!("{program}-{name}-{verb}");
                symlink(format!("/usr/sbin/{program}"), place.join(program)).unwrap();
            }
        }
        let path = place.join(replaced);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self(place)
    }

    fn backend(&self, variant: Variant) -> Iptables {
        Iptables::find_in(variant, std::slice::from_ref(&self.0))
            .unwrap()
            .with_deadline(Duration::from_secs(120))
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn f16_when_ipv6_is_refused_halfway_both_families_are_as_they_were() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        // Commits the first table and refuses the rest, once.
        let refuse_once = format!(
            "[ -e $0.refused ] && exec /usr/sbin/ip6tables-{name}-restore \"$@\"\n\
             touch $0.refused; sed /COMMIT/q | /usr/sbin/ip6tables-{name}-restore \"$@\"; echo no more >&2; exit 1"
        );
        let programs = Programs::with(variant, &format!("ip6tables-{name}-restore"), &refuse_once);
        in_new_namespace(|| {
            let (first, second) = (ruleset("dns-all-tproxy-dual"), ruleset("inject-default-dual"));
            let backend = patient(variant);
            apply(&backend, &first).unwrap();
            let before = save(variant);
            let error = refusal(&programs.backend(variant), &second);
            assert!(matches!(&error, IptablesError::PutBack { family: Family::V6, .. }), "{error:?}");
            assert!(std::error::Error::source(&error).unwrap().to_string().contains("no more"));
            assert_eq!(save(variant), before);
            assert_there(&backend, &first);
        });
    }
}

#[test]
fn a_failure_that_cannot_be_undone_names_both_failures_and_the_next_apply_repairs_it() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        let refuse =
            format!("sed /COMMIT/q | /usr/sbin/iptables-{name}-restore \"$@\"; echo no more >&2; exit 1");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), &refuse);
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            let backend = patient(variant);
            apply(&backend, &ruleset("inject-default-dual")).unwrap();
            let error = refusal(&programs.backend(variant), &rules);
            assert!(matches!(&error, IptablesError::HalfWritten { family: Family::V4, .. }), "{error:?}");
            assert!(error.to_string().contains("no more") && error.hint().unwrap().contains("apply again"));
            apply(&backend, &rules).unwrap();
            assert_there(&backend, &rules);
        });
    }
}

#[test]
fn a10_a_program_that_does_not_end_is_killed_and_named() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), "exec sleep 60");
        in_new_namespace(|| {
            let backend = programs.backend(variant).with_deadline(Duration::from_millis(300));
            let start = Instant::now();
            let error = refusal(&backend, &ruleset("inject-default-dual"));
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("iptables") && cause.contains("killed"), "{cause}");
            assert!(start.elapsed() < Duration::from_secs(5));
        });
    }
}

#[test]
fn programs_see_no_users_and_the_host_still_does() {
    let look = "cat /etc/passwd /etc/group /etc/nsswitch.conf | wc -c >&2; exit 1";
    let programs = Programs::with(Variant::Nft, "iptables-nft-restore", look);
    in_new_namespace(|| {
        let error = refusal(&programs.backend(Variant::Nft), &ruleset("inject-default-dual"));
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.ends_with(": 0"), "{cause}");
        assert!(std::fs::metadata("/etc/passwd").unwrap().len() > 0);
    });
}

#[test]
fn f24_f40_missing_ipv6_programs_are_missed_before_anything_is_written() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        let programs = Programs::with(variant, &format!("ip6tables-{name}-restore"), "");
        std::fs::remove_file(programs.0.join(format!("ip6tables-{name}-restore"))).unwrap();
        in_new_namespace(|| {
            let backend = programs.backend(variant);
            let error = refusal(&backend, &ruleset("inject-default-dual"));
            assert!(matches!(&error, IptablesError::ProgramMissing { family: Family::V6, .. }), "{error:?}");
            assert!(names_nothing_of_ours(&save(variant)));
            apply(&backend, &ruleset("inject-default-v4")).unwrap();
        });
    }
}

#[test]
fn the_program_of_many_names_does_as_well() {
    for (variant, multi) in [(Variant::Legacy, "xtables-legacy-multi"), (Variant::Nft, "xtables-nft-multi")] {
        let place = std::env::temp_dir().join(format!("gybe-{multi}-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let programs = Programs(place);
        symlink(format!("/usr/sbin/{multi}"), programs.0.join(multi)).unwrap();
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            apply(&programs.backend(variant), &rules).unwrap();
            assert_there(&programs.backend(variant), &rules);
            assert_there(&patient(variant), &rules);
        });
    }
}

/// iptables-nft 1.8.7 does this if /etc/protocols is missing.
#[test]
fn programs_that_print_protocols_as_numbers_are_understood() {
    let print = "/usr/sbin/iptables-nft-save \"$@\" | sed -e 's/ -p tcp / -p 6 /' -e 's/ -p udp / -p 17 /'";
    let programs = Programs::with(Variant::Nft, "iptables-nft-save", print);
    let (backend, rules) = (programs.backend(Variant::Nft), ruleset("dns-all-tproxy-dual"));
    in_new_namespace(|| {
        assert_eq!(apply(&backend, &rules).unwrap().previous, PreviousRules::None);
        assert_there(&backend, &rules);
        assert_eq!(apply(&backend, &rules).unwrap().previous, PreviousRules::Same);
        backend.remove().unwrap();
        assert!(names_nothing_of_ours(&save(Variant::Nft)));
    });
}
