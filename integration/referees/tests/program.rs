//! `gybe-referee apply` writes what `gybe verify` accepts and `gybe remove` removes.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::programs::{Run, ours, run};
use gybe_integration::vectors;
use gybe_netfilter::apply::presence::Presence;

fn referee(arguments: &[&str], stdin: &str) -> Result<Run, Failure> {
    run(env!("CARGO_BIN_EXE_gybe-referee"), arguments, stdin)
}

/// A namespace, and the program's and `gybe`'s arguments for it.
struct Pod {
    namespace: Namespace,
    netns: String,
}

impl Pod {
    fn new() -> Result<Self, Failure> {
        let namespace = Namespace::new()?;
        let netns = namespace.path().to_string_lossy().into_owned();
        Ok(Self { namespace, netns })
    }

    fn apply(&self, encoder: &str, policy: &str) -> Result<Run, Failure> {
        referee(&["apply", "--with", encoder, "--netns", &self.netns, "--policy", "-"], policy)
    }

    fn verify(&self, policy: &str) -> Result<Option<i32>, Failure> {
        Ok(ours("gybe", &["verify", "--netns", &self.netns, "--policy", "-"], policy)?.code)
    }

    fn remove(&self) -> Result<Option<i32>, Failure> {
        Ok(ours("gybe", &["remove", "--netns", &self.netns], "")?.code)
    }
}

fn policy(name: &str) -> Result<String, Failure> {
    vectors::policy_files()?.remove(name).ok_or_else(|| Failure::new(format!("no policy {name}")))
}

fn is_verified_and_removed(encoder: &str, names: &[&str]) -> Result<(), Failure> {
    let pod = Pod::new()?;
    for name in names {
        let policy = policy(name)?;
        assert_ne!(pod.verify(&policy)?, Some(0), "{name}: before");
        // The second call changes nothing, and the next policy replaces this one.
        for _ in 0..2 {
            let ran = pod.apply(encoder, &policy)?;
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{name}");
            assert_eq!(pod.verify(&policy)?, Some(0), "{name}");
        }
    }
    assert_eq!(pod.remove()?, Some(0));
    assert!(pod.namespace.run(Presence::look)??.ours.is_empty());
    Ok(())
}

#[test]
fn gybe_verifies_and_removes_what_nftnl_wrote() -> Result<(), Failure> {
    is_verified_and_removed("nftnl", &["inject-default-dual", "dns-all-tproxy-dual", "owner-include"])
}

#[cfg(feature = "rustables")]
#[test]
fn gybe_verifies_and_removes_what_rustables_wrote() -> Result<(), Failure> {
    is_verified_and_removed("rustables", &["random-012", "random-023", "random-034"])
}

#[cfg(feature = "rustables")]
#[test]
fn rustables_refuses_by_name_what_it_cannot_express_and_writes_nothing() -> Result<(), Failure> {
    let (pod, policy) = (Pod::new()?, policy("inject-default-dual")?);
    let ran = pod.apply("rustables", &policy)?;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert_eq!(ran.err, "gybe-referee: rustables cannot express the ends of ranges in a set\n");
    assert!(pod.namespace.run(Presence::look)??.ours.is_empty());
    Ok(())
}

#[test]
fn the_namespace_that_the_program_runs_in_is_refused() -> Result<(), Failure> {
    let (pod, policy) = (Pod::new()?, policy("inject-default-dual")?);
    let arguments = ["apply", "--with", "nftnl", "--netns", "/proc/self/ns/net", "--policy", "-"];
    let ran = pod.namespace.run(|| referee(&arguments, &policy))??;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.err.starts_with("gybe-referee: /proc/self/ns/net is the node's namespace"), "{}", ran.err);
    assert!(pod.namespace.run(Presence::look)??.ours.is_empty());
    Ok(())
}
