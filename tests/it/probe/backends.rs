//! Findings about a backend.

use super::*;

#[tokio::test]
async fn a_backend_that_is_not_there() {
    let (one, two) = (closed_port(), closed_port());
    let setup = Setup::new(&config(
        &format!("kind = \"zvm\"\nsocket = \"{one}\"\nhttp = \"http://{two}\""),
        "",
    ));
    let probed = setup.probe().await;
    probed.only(&[("backend", "answer")]);
    for (about, address) in [("socket", one), ("http", two)] {
        probed.says(
            ("backend", "answer", about),
            "failed",
            &format!("{address} cannot be reached"),
            "nothing listens there: the connection was refused",
            &format!("start the backend, or correct backend.{about}"),
        );
    }
}

#[tokio::test]
async fn each_of_several_servers_is_looked_at() {
    let (up, down) = (backend().await, closed_port());
    let servers = [("a", up.http_addr()), ("b", down)].map(|(name, addr)| {
        format!("[[backend.server]]\nname = \"{name}\"\nhttp = \"http://{addr}\"\n")
    });
    let lines = format!("kind = \"http\"\n{}", servers.concat());
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer")]);
    let answers = probed.check("backend", "answer", "server a");
    assert_eq!(answers["status"], "ok", "{answers}");
    probed.says(
        ("backend", "answer", "server b"),
        "failed",
        &format!("{down} cannot be reached"),
        "nothing listens there: the connection was refused",
        "start the backend, or correct backend.server",
    );
}

#[tokio::test]
async fn a_backend_that_never_answers() {
    let silent = Scripted::start(|_, stream| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let addr = silent.addr;
    let setup = Setup::new(&config(
        &format!("kind = \"zvm\"\nsocket = \"{addr}\"\nhttp = \"http://{addr}\""),
        "",
    ));
    let probed = setup.probe().await;
    probed.only(&[("backend", "answer")]);
    for (about, question) in [("socket", "guest_list"), ("http", "GET /")] {
        probed.says(
            ("backend", "answer", about),
            "failed",
            &format!("{addr} does not answer"),
            &format!("it took the connection, and did not answer {question} within 300 ms"),
            "look at the backend: it may hang, or all of its workers may be busy",
        );
    }
    assert!(probed.took < Duration::from_secs(5), "{:?}", probed.took);
}

#[tokio::test]
async fn a_backend_that_speaks_another_protocol() {
    let sdkserver = answering(OK).await;
    let web = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
    let tls = answering(b"\x15\x03\x01\x00\x02\x02\x46").await;
    let lines = format!(
        "kind = \"zvm\"\nsocket = \"{}\"\nhttp = \"http://{}\"",
        web.addr, sdkserver.addr
    );
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer")]);
    probed.says(
        ("backend", "answer", "socket"),
        "failed",
        &format!("{} speaks another protocol", web.addr),
        "it speaks HTTP, not the protocol of sdkserver",
        "give its address as backend.http, and that of sdkserver as backend.socket",
    );
    probed.says(
        ("backend", "answer", "http"),
        "failed",
        &format!("{} speaks another protocol", sdkserver.addr),
        "it answers with JSON without HTTP, as sdkserver does: {\"overallRC\": 0, \"modID\": null, \"rc\": 0,…",
        "give its address as backend.socket, and that of sdkwsgi as backend.http",
    );
    let lines = format!("kind = \"http\"\nhttp = \"http://{}\"", tls.addr);
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer")]);
    let found = format!("{} speaks another protocol", tls.addr);
    let cause = "it speaks TLS, and the config does not";
    let cure = "lead backend.http to a port without TLS, or to the same one with https://";
    probed.says(("backend", "answer", "http"), "failed", &found, cause, cure);
    // Another HTTP server is no sdkwsgi. As a backend of its own kind it is good.
    let other = |kind: &str| config(&format!("{kind}http = \"http://{}\"", web.addr), "");
    let probed = Setup::new(&other("kind = \"zvm\"\n")).probe().await;
    let found = format!("{} answers GET / with 404, and not as sdkwsgi", web.addr);
    assert_eq!(probed.check("backend", "answer", "http")["found"], found);
    assert_eq!(probed.code, Some(0));
    Setup::new(&other("kind = \"http\"\n"))
        .probe()
        .await
        .only(&[]);
}

#[tokio::test]
async fn a_backend_that_is_in_trouble_or_has_another_clock() {
    let down = answering(
        b"HTTP/1.1 503 Down\r\nDate: Thu, 01 Jan 2015 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let lines = format!("kind = \"http\"\nhttp = \"http://{}\"", down.addr);
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer"), ("backend", "clock")]);
    probed.says(
        ("backend", "answer", "http"),
        "warning",
        &format!("{} answers HEAD / with 503", down.addr),
        "it is up, and cannot serve this harmless request",
        "look at the log of the backend, and at what is behind it",
    );
    let clock = probed.check("backend", "clock", "http clock");
    assert!(
        clock["found"]
            .as_str()
            .is_some_and(|it| it.ends_with(" s behind this machine's"))
    );
    assert_eq!(probed.code, Some(0));
    let broken = answering(
        b"{\"overallRC\": 500, \"modID\": 100, \"rc\": 500, \"rs\": 1, \"errmsg\": \"no database\", \"output\": \"\"}",
    )
    .await;
    let probed = Setup::new(&config(&format!("socket = \"{}\"", broken.addr), ""))
        .probe()
        .await;
    probed.says(
        ("backend", "answer", "socket"),
        "warning",
        &format!("{} answers guest_list with overallRC 500", broken.addr),
        "sdkserver says: no database",
        "look at the log of sdkserver, /var/log/zvmsdk/zvmsdk.log",
    );
}
