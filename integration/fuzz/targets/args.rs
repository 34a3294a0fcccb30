//! `CNI_ARGS`: an accepted name is one that Kubernetes allows, and safe as part of a path.
#![no_main]

use gybe_plugin::args::PodRef;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|args: &str| {
    let Ok(Some(pod)) = PodRef::from_args(args) else { return };
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    for word in [namespace, name] {
        assert!((1..=253).contains(&word.len()), "{word:?}");
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        assert!(word.bytes().all(plain) && !word.starts_with('.') && !word.contains(".."), "{word:?}");
    }
    assert!(!namespace.contains('.'), "{namespace:?}");
    // Written and parsed again, it is the same pod.
    let uid = pod.uid.as_deref().map(|uid| format!(";K8S_POD_UID={uid}")).unwrap_or_default();
    let again = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}{uid}");
    assert_eq!(PodRef::from_args(&again), Ok(Some(pod)));
});
