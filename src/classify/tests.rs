use tidegate_limits::Timestamp;

use super::*;
use crate::call::{HttpCall, Identity, Peer};

fn classifier(function: &str) -> Classifier {
    Classifier::new(&ClassifierSettings {
        kind: BackendKind::Http,
        odd_paths: OddPaths::Refuse,
        routes: vec![Route::new("GET", "/a", Some(function))],
        functions: Vec::new(),
        has_socket: false,
        has_http: true,
        exempt: Vec::new(),
        classes: class::ClassSettings::default(),
        jobs: crate::call::jobs::JobSettings::default(),
    })
}

fn head() -> Arc<Head> {
    let request = http::Request::get("/a").header("host", "a").body(());
    let (head, ()) = request.expect("a request").into_parts();
    Arc::new(head.into())
}

fn asks(classifier: &Classifier, head: &Arc<Head>, listener: &Arc<str>) -> Operation {
    let peer = Peer::Tcp(([127, 0, 0, 1], 1).into());
    let identity = Identity::without_names(Arc::clone(listener), peer);
    classifier.classify(&Request {
        origin: Origin {
            identity: Arc::new(identity),
            arrived: Timestamp::ZERO,
        },
        message: Message::Http(Box::new(HttpCall::new(
            Arc::clone(head),
            RequestBody::Whole(bytes::Bytes::new()),
        ))),
    })
}

/// The memo of a head for a classifier and a listener.
fn remembered(classifier: &Classifier, head: &Head, listener: &Arc<str>) -> Option<Operation> {
    head.memo.find(|kept: &HeadOperation| {
        let is_it = kept.classifier == classifier.id && Arc::ptr_eq(&kept.listener, listener);
        is_it.then(|| kept.operation.clone())
    })
}

#[test]
fn a_head_that_comes_again_is_looked_up_once_for_a_listener_and_a_classifier() {
    let (first, after_a_reload) = (classifier("first"), classifier("second"));
    let (head, listener, other) = (head(), Arc::from("main"), Arc::from("other"));
    let operation = asks(&first, &head, &listener);
    assert_eq!(&*operation.function, "first");
    assert_eq!(remembered(&first, &head, &listener), Some(operation));
    assert_eq!(remembered(&first, &head, &other), None);
    assert_eq!(remembered(&after_a_reload, &head, &listener), None);
    let operation = asks(&after_a_reload, &head, &listener);
    assert_eq!(&*operation.function, "second");
}

#[test]
fn a_changed_copy_of_a_head_remembers_nothing() {
    let (classifier, head, listener) = (classifier("first"), head(), Arc::from("main"));
    asks(&classifier, &head, &listener);
    assert!(remembered(&classifier, &head, &listener).is_some());
    let copy = Head::clone(&head);
    assert_eq!(remembered(&classifier, &copy, &listener), None);
}
