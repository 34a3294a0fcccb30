//! Other owners' redirections in the same namespace are recognized and not changed.

use super::*;
use gybe_netfilter::apply::{ApplyError, apply};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::nft::Nft;

#[test]
fn chains_of_istio_are_refused_and_left_alone() {
    for variant in VARIANTS {
        let backend = patient(variant);
        for program in ["iptables", "ip6tables"] {
            in_new_namespace(|| {
                tables(variant, &format!("{program} -t nat -N ISTIO_OUTPUT"));
                tables(variant, &format!("{program} -t nat -A OUTPUT -j ISTIO_OUTPUT"));
                tables(
                    variant,
                    &format!("{program} -t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001"),
                );
                let before = save(variant);
                let error = apply(&backend, &ruleset("inject-default-dual")).unwrap_err();
                assert!(error.to_string().contains("ISTIO_OUTPUT in table nat"), "{error}");
                assert!(error.hint().unwrap().contains("istio-cni"));
                backend.remove().unwrap();
                assert!(backend.inspect().unwrap().is_empty());
                assert_eq!(save(variant), before);
            });
        }
    }
}

#[test]
fn nobody_is_redirected_by_two_backends_at_a_time() {
    let [legacy, nft] = VARIANTS.map(patient);
    let rules = ruleset("inject-default-dual");
    for (first, second) in
        [(&legacy as &dyn Backend, &nft as &dyn Backend), (&nft, &legacy), (&Nft, &legacy), (&Nft, &nft)]
    {
        in_new_namespace(|| {
            apply(first, &rules).unwrap();
            apply(second, &rules).unwrap();
            assert!(first.inspect().unwrap().is_empty(), "{} over {}", second.name(), first.name());
            assert!(second.desired(&rules).unwrap().differences(&second.inspect().unwrap()).is_empty());
            first.remove().unwrap();
            assert!(second.desired(&rules).unwrap().differences(&second.inspect().unwrap()).is_empty());
        });
    }
}

#[test]
fn what_istio_wrote_by_other_means_is_refused_and_left_alone() {
    let istio = "*nat\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -j ISTIO_OUTPUT\nCOMMIT\n";
    for (backend, by, whose) in [
        (Variant::Legacy, format!("iptables-nft-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Variant::Nft, format!("iptables-legacy-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Variant::Legacy, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
        (Variant::Nft, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
    ] {
        in_new_namespace(|| {
            sh(&by);
            sh(
                "nft list table inet istio-proxy-nat >/dev/null 2>&1 && nft add chain inet istio-proxy-nat output || true",
            );
            let error = apply(&patient(backend), &ruleset("inject-default-dual")).unwrap_err();
            assert!(
                matches!(error, ApplyError::OtherMesh(_)) && error.to_string().contains(whose),
                "{error}"
            );
            assert!(names_nothing_of_ours(&save(backend)));
        });
    }
}
