//! Another call deletes Gybe's nftables table while apply removes the rules of an earlier backend.

use super::{in_new_namespace, patient, sh};
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::vectors;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::redirection::Redirection;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const PROGRAMS: &str = "/usr/sbin/xtables-nft-multi";

/// Makes every iptables-nft program that this thread runs delete Gybe's table first, as a concurrent call may.
fn delete_the_table_with_every_program(directory: &Path) {
    let (real, wrapper) = (directory.join("real"), directory.join("wrapper"));
    fs::copy(PROGRAMS, &real).unwrap();
    let script = format!(
        "#!/bin/bash\n/usr/sbin/nft delete table inet gybe 2>/dev/null\nexec -a \"${{0##*/}}\" {} \"$@\"\n",
        real.display()
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    mount(Some(&wrapper), PROGRAMS, nothing, MsFlags::MS_BIND, nothing).unwrap();
}

#[test]
fn a_table_that_goes_while_another_backends_rules_are_removed_is_written_again() {
    let all = vectors::all().unwrap();
    let vector = all.into_iter().find(|vector| vector.name == "inject-default-v4").unwrap();
    let redirection = Redirection::of(&vector.policy);
    let place = PluginDir::new("meanwhile");
    in_new_namespace(|| {
        redirection.apply(&*patient(BackendKind::IptablesNft)).unwrap();
        delete_the_table_with_every_program(place.path());
        redirection.apply(&*patient(BackendKind::Nft)).unwrap();
        assert!(sh("nft list tables").contains("table inet gybe"));
        assert!(!sh("nft list ruleset").contains("ISTIO_OUTPUT"), "the earlier rules remain");
    });
}
