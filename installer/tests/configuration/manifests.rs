//! Manifests: the pods in them, and the limits on hostile ones.

use gybe_installer::pod::manifest::{LONGEST, ManifestError, PodTemplate, pods};
use serde_json::Value;
use std::fmt::Write;
use std::time::{Duration, Instant};

const POD_SPEC: &str = "{containers: [{name: app}]}";

fn one(text: &str) -> PodTemplate {
    let mut pods = pods(text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    assert_eq!(pods.len(), 1, "{text}");
    pods.remove(0)
}

fn container(pod: &Value) -> &str {
    pod.pointer("/spec/containers/0/name").and_then(Value::as_str).unwrap()
}

#[test]
fn the_pod_template_of_every_kind_is_found() {
    for kind in [
        "Deployment",
        "DaemonSet",
        "ReplicaSet",
        "ReplicationController",
        "Job",
        "StatefulSet",
        "DeploymentConfig",
        "Rollout",
    ] {
        let text = format!(
            "kind: {kind}\nmetadata: {{name: shop, namespace: front}}\nspec:\n  template:\n    \
             metadata: {{labels: {{app: shop}}}}\n    spec: {POD_SPEC}\n"
        );
        let found = one(&text);
        assert_eq!(found.origin, format!("{kind}/shop"));
        assert_eq!(container(&found.pod), "app");
        assert_eq!(found.pod["metadata"]["namespace"], "front");
        assert_eq!(found.pod["metadata"]["labels"]["app"], "shop");
    }
}

#[test]
fn pods_cron_jobs_and_bare_templates_are_read() {
    for (text, origin) in [
        (format!("kind: Pod\nmetadata: {{name: a}}\nspec: {POD_SPEC}"), "Pod/a"),
        (format!("kind: Pod\nmetadata: {{generateName: a-}}\nspec: {POD_SPEC}"), "Pod/a-"),
        (
            format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {{spec: {POD_SPEC}}}}}}}}}"),
            "CronJob/unnamed",
        ),
        (
            format!("kind: PodTemplate\nmetadata: {{name: a}}\ntemplate: {{spec: {POD_SPEC}}}"),
            "PodTemplate/a",
        ),
    ] {
        let found = one(&text);
        assert_eq!(found.origin, origin);
        assert_eq!(container(&found.pod), "app");
    }
}

#[test]
fn lists_documents_and_json_are_read_in_order() {
    let pod = |name: &str| format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}"}},"spec":{{}}}}"#);
    let list = format!(r#"{{"kind":"List","items":[{},{{"kind":"Service"}},{}]}}"#, pod("a"), pod("b"));
    let text = format!("---\n# nothing here\n---\n{list}\n---\n{}\n...\n", pod("c"));
    let origins: Vec<String> = pods(&text).unwrap().into_iter().map(|pod| pod.origin).collect();
    assert_eq!(origins, ["Pod/a", "Pod/b", "Pod/c"]);
    assert_eq!(pods(&list).unwrap().len(), 2);
}

#[test]
fn the_error_for_a_file_without_pods_names_the_kinds_in_it() {
    let text = "kind: Service\nspec: {}\n---\nkind: Certificate\nspec: {template: {spec: {}}}\n";
    let error = pods(text).unwrap_err();
    assert_eq!(error.to_string(), "the manifest has no pod and no pod template, only Service, Certificate");
    for text in ["", "---\n", "[]", "5", "{}", "kind: Pods"] {
        assert!(matches!(pods(text), Err(ManifestError::NoPod { .. })), "{text:?}");
    }
}

#[test]
fn annotations_keep_their_text() {
    let text =
        "kind: Pod\nmetadata:\n  annotations:\n    a: \"\"\n    b: '*'\n    c: '15020'\n    d: \"true\"\n";
    let pod = one(text).pod;
    for (key, value) in [("a", ""), ("b", "*"), ("c", "15020"), ("d", "true")] {
        assert_eq!(pod["metadata"]["annotations"][key], value);
    }
}

#[test]
fn a10_hostile_manifests_are_refused_quickly_and_in_one_line() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let lower = vec![format!("*a{}", i - 1); 10].join(", ");
        writeln!(laughs, "a{i}: &a{i} [{lower}]").unwrap();
    }
    let deep_block: String = (0..3_000).fold(String::new(), |text, i| text + &" ".repeat(i) + "a:\n");
    for (what, text) in [
        ("multiplying anchors", laughs),
        ("an anchor inside itself", "a: &a [*a]\n".to_owned()),
        ("deep lists", "[".repeat(1_000_000)),
        ("deep objects", "{a: ".repeat(500_000)),
        ("deep blocks", deep_block),
        ("many documents", "---\na: 1\n".repeat(100_000)),
        ("many nodes", format!("[{}]", "1,".repeat(2_000_000))),
        ("a name twice", "kind: Pod\nkind: Pod\n".to_owned()),
        ("a control character", "kind: \u{1}\n".to_owned()),
        ("an unknown alias", "kind: *missing\n".to_owned()),
        ("a tab", "kind:\n\t- Pod\n".to_owned()),
    ] {
        let begin = Instant::now();
        let error = pods(&text).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(20), "{what} took {:?}", begin.elapsed());
        let ManifestError::Syntax(why) = error else { panic!("{what}: {error:?}") };
        assert!(!why.to_string().contains('\n'), "{what}: {why}");
    }
    assert!(matches!(pods(&" ".repeat(LONGEST + 1)), Err(ManifestError::TooLong)));
}
