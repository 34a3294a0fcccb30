//! What is known when all is well.

use crate::ground::{Ground, asked, becomes, knows, meshed};
use gybe_plugin::facts::wire::Answer;

#[test]
fn pods_of_the_node_are_known_by_list_and_by_watch_and_forgotten_when_they_go() {
    let ground = Ground::new("watch");
    ground.put("cart-0", "u0");
    let mut elsewhere = meshed("cart-9", "u9");
    elsewhere["spec"]["nodeName"] = "node-2".into();
    ground.server.put_pod(elsewhere);
    let watched = ground.watched();
    knows(&watched, "cart-0", "u0");
    ground.put("cart-1", "u1");
    knows(&watched, "cart-1", "u1");
    assert_eq!(watched.state().pods, 2);
    ground.server.delete_pod("shop", "cart-0");
    becomes(&watched, |state| state.pods == 1);
    assert_eq!(asked(&watched, "cart-0", "u0"), Err(Answer::Unknown));
    assert_eq!(
        (ground.gets("cart-0"), ground.gets("cart-1"), ground.lists(), ground.watches()),
        (1, 0, 1, 1)
    );
}
