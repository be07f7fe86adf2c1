//! `tidegate callers`, `limits` and `explain`, asked as people ask.

use serde_json::{Value, json};
use tokio::process::Command;

use super::{Served, fake, monitoring};
use crate::sidecar::{Said, TIDEGATE, run};

/// Runs a command of the real binary against a served API.
async fn said(served: &Served, arguments: &[&str]) -> Said {
    let mut command = Command::new(TIDEGATE);
    command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
    command.env("TIDEGATE_ADMIN", served.address.to_string());
    run(&mut command).await
}

async fn served() -> Served {
    let served = Served::start().await;
    served.ask("POST", "/v1/callers", &monitoring()).await;
    let limit = json!({"label": "monitoring", "profile": "poller", "callers": ["c3"]});
    served.ask("POST", "/v1/rate-limits", &limit).await;
    served
}

#[tokio::test]
async fn callers_are_a_table_for_people_and_json_for_tools() {
    let served = served().await;
    let table = said(&served, &["callers"]).await;
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert_eq!(
        table.out,
        "\
ID  LABEL             MATCH                            FROM     LIMIT  CALLS 5M  CALLS 1H  TOKENS 1H  TOKENS 24H  LAST CALL
c0  -                 -                                unknown  -           149       149        149         149  never
c1  poller            listener=nova-poll               config   -           149       149        149         149  never
c2  -                 ip=10.9.9.9 user_agent=curl/8.5  auto     -           149       149        149         149  2026-11-18 12:06:40Z
c3  Monitoring App X  ip=10.1.2.0/24                   api      r1          149       149        149         149  never
"
    );
    let tools = said(&served, &["callers", "--json"]).await;
    let read: Value = serde_json::from_str(&tools.out).expect("JSON");
    assert_eq!(read["total"], 4);
    assert_eq!(read["callers"][3]["label"], "Monitoring App X");
}

#[tokio::test]
async fn limits_are_those_of_the_config_and_those_of_callers() {
    let served = served().await;
    let table = said(&served, &["limits"]).await;
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert_eq!(
        table.out,
        "\
LIMIT        CALLS  BOUNDS                        USED  OF  OPENS
total        all    in any 1 s, 30 by the config    30   9  in 0.25 s
outstanding  all    at once, 10 by the config        4   9  now

RATE LIMIT  LABEL       FROM  KIND    BURST  RATE/S  ACHIEVED  TOKENS  OPENS  DOES    CALLERS  QUEUED  CHARGED  REJECTED
r1          monitoring  api   bucket     30       3         -      30  now    delays        1       0        0         0

QUOTA                TOTAL  WINDOW  OWN SHARE  DOES    KEYS  ADMITTED  REFUSED  DRAWS
rate_limit:per_user    100  60 s           16  delays     1       103        1      5
Kept in zookeeper: the store is unavailable: <refused>.
"
    );
    let tools = said(&served, &["limits", "--json"]).await;
    let read: Value = serde_json::from_str(&tools.out).expect("JSON");
    assert_eq!(read["limits"][0]["name"], "total");
    assert_eq!(read["rate_limits"][0]["id"], "r1");
    assert_eq!(read["buckets"][0]["rate_limit"], "r1");
}

#[tokio::test]
async fn a_call_is_explained_by_the_id_of_its_access_line() {
    let served = served().await;
    let told = said(&served, &["explain", "0123456789ABCDEF"]).await;
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert_eq!(
        told.out,
        "\
call        guest_list of -
arrived     2026-11-18T11:06:40.000000Z on nova-poll
caller      c1, class polling
charged to  monitoring, 1 tokens
ended       delayed
queue       1500 ms
backend     240.50 ms
total       1750 ms

HELD BY                  MS
rate_limit:monitoring  1200
waiting for its turn    300
"
    );
    let waits = said(&served, &["explain", &fake::WAITS.to_string()]).await;
    assert_eq!(
        waits.out,
        "\
call        guest_list of -
arrived     2026-11-18T11:06:40.000000Z on nova-poll
caller      c1, class polling
charged to  monitoring
now         waits for `total`: 1.5 s so far, 12 calls ahead, starts in about 1.4 s
queue       1500 ms
backend     -
total       1500 ms

HELD BY    MS
total    1500
"
    );
    let tools = said(&served, &["explain", "0123456789abcdef", "--json"]).await;
    let read: Value = serde_json::from_str(&tools.out).expect("JSON");
    assert_eq!(read["verdict"], "delayed");

    let unknown = said(&served, &["explain", "00000000000000ff"]).await;
    assert_eq!(unknown.code, Some(1));
    let expected =
        "there is no call 00000000000000ff: known are calls under way, and the last 10000";
    assert!(unknown.err.contains(expected), "{}", unknown.err);
    let wrong = said(&served, &["explain", "7"]).await;
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("16 hexadecimal digits"), "{}", wrong.err);
}

#[tokio::test]
async fn a_token_is_read_from_its_file_and_asked_for_without() {
    let served = Served::with(Some("s3cret")).await;
    let without = said(&served, &["callers"]).await;
    assert_eq!(without.code, Some(1));
    assert!(without.err.contains("401"), "{}", without.err);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    std::fs::write(&path, "s3cret\n").expect("written");
    let path = path.to_str().expect("a path in UTF-8");
    let with = said(&served, &["callers", "--token-file", path]).await;
    assert_eq!(with.code, Some(0), "{}", with.err);
    let nowhere = said(&served, &["callers", "--token-file", "/nowhere"]).await;
    assert_eq!(nowhere.code, Some(1));
    assert!(nowhere.err.contains("/nowhere"), "{}", nowhere.err);
}

#[tokio::test]
async fn a_missing_sidecar_is_reported_with_its_address() {
    let address = crate::support::closed_port().to_string();
    let mut command = Command::new(TIDEGATE);
    let told = run(command.args(["limits", "--admin", &address])).await;
    assert_eq!(told.code, Some(1));
    let expected = format!("tried {address}: ");
    assert!(told.err.contains(&expected), "{}", told.err);
    assert!(told.err.contains("is the sidecar running"), "{}", told.err);
}

#[tokio::test]
async fn a_sidecar_is_asked_by_its_host_name_or_by_its_config() {
    let served = Served::with(Some("s3cret")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let token = file("token", "s3cret\n");
    let port = served.address.port();
    let ask = async |arguments: &[&str]| {
        let mut command = Command::new(TIDEGATE);
        command.arg("callers").args(arguments);
        command
            .env_remove("TIDEGATE_ADMIN")
            .env_remove("TIDEGATE_TOKEN_FILE");
        run(&mut command).await
    };
    for admin in [
        format!("localhost:{port}"),
        format!("http://localhost:{port}"),
        format!("http://127.0.0.1:{port}/"),
    ] {
        let told = ask(&["--admin", &admin, "--token-file", &token]).await;
        assert_eq!(told.code, Some(0), "{admin}: {}", told.err);
    }
    let least = "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
                 [backend]\nsocket = \"127.0.0.1:1\"\n\
                 [limits]\nper_window = \"total:30\"\n";
    let config = format!("{least}[admin]\nbind = \"0.0.0.0:{port}\"\ntoken = \"s3cret\"\n");
    let config = file("config.toml", &config);
    let told = ask(&["--config", &config]).await;
    assert_eq!(told.code, Some(0), "{}", told.err);
    // The token of a config goes to no other address than that of the config.
    let admin = format!("127.0.0.1:{port}");
    let told = ask(&["--config", &config, "--admin", &admin]).await;
    assert_eq!(told.code, Some(1), "{}", told.out);
    assert!(told.err.contains("--token-file"), "{}", told.err);
    let told = ask(&["--config", "/nowhere.toml"]).await;
    assert_eq!(told.code, Some(1));
    assert!(told.err.contains("--admin"), "{}", told.err);
    let told = ask(&["--admin", "localhost"]).await;
    assert_eq!(told.code, Some(2));
    assert!(told.err.contains("localhost:9180"), "{}", told.err);
}
