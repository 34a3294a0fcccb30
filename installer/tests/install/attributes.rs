//! A conf file that Gybe rewrites keeps its owner, mode and extended attributes.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use gybe_installer::host::desired::PutBack;
use rustix::fs::{XattrFlags, fsetxattr, getxattr};

use crate::ground::Ground;
use crate::wants::{chained, left};

const LIST: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";
const SINGLE: &str = "{\"name\":\"net\",\"type\":\"calico\"}";

/// Returns an access control list as the kernel stores it (`posix_acl_xattr.h`): its owner may write, user 1000 read.
fn acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries =
        [(0x01_u16, 6_u16, NOBODY), (0x02, 4, 1000), (0x04, 0, NOBODY), (0x10, 4, NOBODY), (0x20, 0, NOBODY)];
    let bytes = entries.iter().flat_map(|(tag, rights, id)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// Returns the extended attributes to preserve, with their values.
fn attributes() -> [(&'static str, Vec<u8>); 3] {
    [
        ("user.origin", b"calico".to_vec()),
        ("security.selinux", b"system_u:object_r:container_file_t:s0\0".to_vec()),
        ("system.posix_acl_access", acl()),
    ]
}

fn has_all(path: &Path) -> bool {
    let there = fs::metadata(path).unwrap();
    let mut value = vec![0; 1024];
    (there.uid(), there.gid(), there.mode() & 0o777) == (1001, 1002, 0o640)
        && attributes().iter().all(|(name, expected)| {
            getxattr(path, *name, value.as_mut_slice()).is_ok_and(|length| value[..length] == *expected)
        })
}

#[test]
fn a_conf_file_keeps_its_owner_mode_label_and_access_control_list() {
    for (name, content, ours) in
        [("10-a.conflist", LIST, "10-a.conflist"), ("10-a.conf", SINGLE, "10-a.conflist")]
    {
        let ground = Ground::with(&[(name, content)]);
        let (theirs, ours) = (ground.conf(name), ground.conf(ours));
        chown(&theirs, Some(1001), Some(1002)).unwrap();
        let file = File::open(&theirs).unwrap();
        for (attribute, value) in attributes() {
            fsetxattr(&file, attribute, &value, XattrFlags::CREATE)
                .unwrap_or_else(|why| panic!("{attribute}: {why}"));
        }
        assert!(has_all(&theirs), "before");
        ground.settle(&chained(&ground.root));
        assert_eq!(ground.chain().1, ["calico", "gybe-cni"]);
        assert!(has_all(&ours), "{name}: with our entry");
        ground.settle(&left(&ground.root, PutBack::Nothing));
        assert_eq!(ground.text(name), content);
        assert!(has_all(&theirs), "{name}: without our entry again");
    }
}
