//! Changes by operators while a new process takes over: it would not know of them.

use std::time::Duration;

use tidegate_handover::{ToNew, ToOld, Versions};

use super::versions::{ByHand, beside_the_ledger};
use super::{Upgraded, socket_backend, stand_in};
use crate::support::{array, ask};

#[tokio::test]
async fn a_change_is_refused_while_a_new_process_takes_over_and_a_reload_waits() {
    let backend = stand_in(Duration::ZERO).await;
    let limits = "per_window = \"total:1000\"";
    let old = Upgraded::start(&socket_backend(&backend.socket_addr()), limits, "").await;
    let ledger = beside_the_ledger(old.dir.path(), "ledger");
    let mut new = ByHand::introduced(old.dir.path(), Versions::OWN).await;
    let welcome: ToNew = new.next().await;
    assert!(matches!(welcome, ToNew::Welcome { .. }), "{welcome:?}");
    new.send(&ToOld::Prepared).await;
    while !matches!(new.next().await, ToNew::Commit { .. }) {}
    let frozen = std::fs::read(&ledger).expect("it is there");
    let refused = [
        (
            "/v1/backend/pause",
            "{\"hold_seconds\": 600, \"why\": \"w\"}",
        ),
        ("/v1/backend/resume", "{\"ramp_seconds\": 0}"),
        (
            "/v1/callers",
            "{\"label\": \"a\", \"match\": [{\"user\": \"u\"}]}",
        ),
    ];
    for (path, change) in refused {
        let (status, said) = old.sidecar.ask("POST", path, change).await;
        assert_eq!(status, 409, "{path}: {said}");
        assert!(said.contains("takes over at this moment"), "{path}: {said}");
    }
    let config = std::fs::read_to_string(old.sidecar.config_path()).expect("its config");
    let config = config.replace("total:1000", "total:500");
    old.sidecar.write_config(&config);
    old.sidecar.signal("HUP");
    old.sidecar.log().wait(&["so the change waits"]).await;
    for _ in 0..20 {
        let (status, _) = old.sidecar.get("/v1/now").await;
        assert_eq!(status, 200);
    }
    // It is the other process's now.
    assert_eq!(std::fs::read(&ledger).expect("it is there"), frozen);
    drop(new);
    let (_, served) = old.sidecar.log().wait_from(0, &["this one serves"]).await;
    old.sidecar
        .log()
        .wait_from(served, &["config reloaded"])
        .await;
    assert_ne!(std::fs::read(&ledger).expect("it is there"), frozen);
    let (status, said) = old.sidecar.ask("POST", refused[0].0, refused[0].1).await;
    assert_eq!(status, 200, "{said}");
    old.sidecar.ask("POST", refused[1].0, refused[1].1).await;
    assert!(
        ask(old.addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
}
