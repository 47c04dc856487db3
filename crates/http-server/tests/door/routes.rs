//! The list of routes: its description, its scopes, and what answers beside it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{Method, Request, header};
use http_server::{Access, Door, Keyring, Peer, Scope, ServerOptions};
use serde_json::Value;

use crate::sample::{Sample, key};
use crate::wire::{Client, get, post};

fn described(door: &Door) -> Value {
    serde_json::from_str(door.description()).unwrap()
}

#[tokio::test]
async fn every_route_is_described_and_everything_described_is_a_route() {
    let sample = Sample::new(vec![]);
    let listed: BTreeSet<(String, String)> = sample
        .door
        .routes()
        .iter()
        .map(|route| (route.method.as_str().to_lowercase(), route.path.to_string()))
        .collect();
    let description = described(&sample.door);
    let mut found = BTreeSet::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            found.insert((method.clone(), path.clone()));
        }
    }
    assert_eq!(listed, found);
    assert!(listed.contains(&("get".to_owned(), "/openapi.json".to_owned())));

    // What is described is what is served, and each route is reached under its name.
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/openapi.json")).await.json(), description);
}

#[tokio::test]
async fn the_description_says_of_each_route_what_the_list_says() {
    let sample = Sample::new(vec![]);
    let description = described(&sample.door);
    assert_eq!(description["paths"]["/v1/things/{id}"]["put"]["operationId"], "put_v1_things_id");
    assert_eq!(description["paths"]["/v1/things:start"]["post"]["operationId"], "post_v1_things_start");
    for route in sample.door.routes() {
        let operation = &description["paths"][route.path.as_ref()][route.method.as_str().to_lowercase()];
        let wanted: Vec<&str> = route.access.wanted(false).iter().map(|scope| scope.word()).collect();
        assert_eq!(operation["x-scopes"], serde_json::json!(wanted), "{}", route.path);
        assert_eq!(operation["x-audited"], route.audited, "{}", route.path);
        let problem = &operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"];
        assert_eq!(problem, "#/components/schemas/Problem", "{}", route.path);
        let security = &operation["security"];
        match route.access {
            Access::Open => assert!(security.is_null(), "{security}"),
            Access::Probe => assert_eq!(*security, serde_json::json!([{"key": []}, {}])),
            Access::Scopes(_) => assert_eq!(*security, serde_json::json!([{"key": []}])),
        }
    }
    assert!(description["components"]["schemas"]["Echo"]["properties"]["text"].is_object());
    assert_eq!(description["components"]["securitySchemes"]["key"]["scheme"], "bearer");
}

/// A request for a route that its handler takes, or refuses for its content at most.
fn request(method: &Method, path: &str, bearer: Option<&str>) -> Request<Body> {
    let path = path.replace("{id}", "1").replace("{a}", "x").replace("{b}", "y");
    let mut request = Request::builder().method(method).uri(path);
    if let Some(bearer) = bearer {
        request = request.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
    }
    request.body(Body::empty()).unwrap()
}

fn peer(on_loopback: bool) -> Peer {
    Peer { address: SocketAddr::from(([127, 0, 0, 1], 1)), on_loopback }
}

/// W12 and the scopes of every route: each set of scopes, with each set of another key beside it that matters.
#[tokio::test(flavor = "multi_thread")]
async fn each_route_is_open_to_exactly_the_keys_that_have_a_scope_for_it() {
    let sample = Sample::with(vec![], |options| options.public_probes = false);
    let beside: [&[Scope]; 4] = [&[], &[Scope::Admin], &[Scope::Execute], &[Scope::Worker]];
    let mut asked = 0;
    for held in 0..1u8 << Scope::ALL.len() {
        let held: Vec<Scope> = Scope::ALL
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| held & 1 << bit != 0)
            .map(|(_, scope)| scope)
            .collect();
        for others in beside {
            let (text, ours) = key(1, &held);
            let mut keys = vec![ours];
            if !others.is_empty() {
                keys.push(key(2, others).1);
            }
            sample.keyring.send_replace(Some(std::sync::Arc::new(Keyring::new(keys))));
            let narrowed = held.iter().chain(others).any(|scope| matches!(scope, Scope::Execute | Scope::Worker));
            for route in sample.door.routes() {
                // Those that wait are asked by their wrong callers only.
                let expected = match route.access {
                    Access::Open => true,
                    Access::Probe => held.contains(&Scope::Read) || held.contains(&Scope::Admin),
                    Access::Scopes(wanted) => wanted.iter().any(|wanted| {
                        let by_write = matches!(wanted, Scope::Execute | Scope::Worker) && !narrowed;
                        held.contains(wanted)
                            || held.contains(&Scope::Admin)
                            || by_write && held.contains(&Scope::Write)
                    }),
                };
                if expected && ["/v1/hold", "/v1/watch", "/v1/large"].contains(&route.path.as_ref()) {
                    continue;
                }
                if expected && route.path.starts_with("/v1/panic") {
                    continue; // each would print its backtrace
                }
                let answer =
                    sample.door.answer(request(&route.method, &route.path, Some(text.reveal())), peer(false)).await;
                let admitted = answer.status() != 403;
                assert_ne!(answer.status(), 401);
                assert_eq!(admitted, expected, "{held:?} beside {others:?}: {} {}", route.method, route.path);
                asked += 1;
            }
            // Nobody gets in without a key, or with a key that is not defined.
            for route in sample.door.routes().iter().filter(|route| route.access != Access::Open) {
                for bearer in [None, Some(key(9, &[]).0)] {
                    let bearer = bearer.as_ref().map(|text| text.reveal());
                    let answer = sample.door.answer(request(&route.method, &route.path, bearer), peer(true)).await;
                    assert_eq!(answer.status(), 401, "{}", route.path);
                    assert_eq!(answer.headers()["www-authenticate"], "Bearer");
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 64 * 4 * 30, "{asked}");
}

#[tokio::test]
async fn without_keys_loopback_is_answered_until_the_first_key_is_there() {
    let sample = Sample::new(vec![]);
    let ask = async |on_loopback| {
        sample.door.answer(request(&Method::GET, "/v1/things/{id}", None), peer(on_loopback)).await.status().as_u16()
    };
    assert_eq!((ask(true).await, ask(false).await), (200, 401));
    sample.keyring.send_replace(Some(std::sync::Arc::new(Keyring::new([key(1, &[Scope::Admin]).1]))));
    assert_eq!((ask(true).await, ask(false).await), (401, 401));
    sample.keyring.send_replace(Some(std::sync::Arc::default()));
    assert_eq!((ask(true).await, ask(false).await), (200, 401));
    // Not known is not the same as none.
    sample.keyring.send_replace(None);
    assert_eq!((ask(true).await, ask(false).await), (503, 503));
}

#[tokio::test]
async fn what_is_no_route_is_a_problem() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    for path in ["/", "/v1", "/v1/things", "/v1/things/1/", "/..%2fetc", "/v1/things:stop", "//open"] {
        let reply = client.ask(get(path)).await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "not_found"), "{path}");
    }
    let reply = client.ask(post("/v1/things/1", "{}")).await;
    assert_eq!((reply.status, reply.code().as_str()), (405, "method_not_allowed"));
    let allowed: BTreeSet<&str> = reply.headers["allow"].split(',').map(str::trim).collect();
    assert_eq!(allowed, BTreeSet::from(["GET", "HEAD", "PUT"]));
    for line in ["CONNECT localhost:80", "OPTIONS *", "TRACE /open", "BREW /open"] {
        let reply = client.ask(format!("{line} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        assert!([404, 405].contains(&reply.status), "{line}: {reply:?}");
        reply.code();
    }
    let absolute = "GET http://localhost/open HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(client.ask(absolute).await.body, b"open");
    for path in ["/v1/things/x", "/v1/things/-1", "/v1/things/1?limit=x"] {
        let reply = client.ask(get(path)).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.code().ends_with("_unexpected"), "{path}");
    }
    for path in ["/v1/things/%00", "/v1/things/1?limit=%00", "/v1/things/%ff"] {
        let reply = client.ask(get(path)).await;
        assert!(reply.status == 400 && ["nul_in_text", "not_utf8"].contains(&reply.code().as_str()), "{path}");
    }
}

#[tokio::test]
async fn answers_of_handlers_arrive_whole_and_refusals_have_no_internals() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    let reply = client.ask(get("/v1/things/7?limit=3")).await;
    assert_eq!((reply.status, reply.json()), (200, serde_json::json!({"text": "thing 7", "count": 3})));
    assert_eq!(
        (reply.headers["cache-control"].as_str(), reply.headers["x-content-type-options"].as_str()),
        ("no-store", "nosniff")
    );
    let id = reply.headers["x-request-id"].clone();
    assert_ne!(client.ask(get("/open")).await.headers["x-request-id"], id);

    let reply = client.ask(get("/v1/fail")).await;
    assert_eq!((reply.status, reply.code().as_str()), (500, "internal"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("db.internal"));
    let reply = client.ask(get("/v1/rejected")).await;
    assert_eq!((reply.status, reply.code().as_str()), (400, "bad_request"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("internal::Type"));

    let put = |body: &str| post("/v1/things/0", body).replacen("POST", "PUT", 1);
    assert_eq!(client.ask(put(r#"{"text":"a"}"#)).await.code(), "thing_taken");
    let reply = client.ask(put(r#"{"text":1}"#)).await;
    assert_eq!(
        (reply.status, reply.code().as_str(), &reply.json()["pointer"]),
        (400, "json_unexpected", &"/text".into())
    );
    let reply = client.ask(put(r#"{"text":"a"}"#).replace("application/json", "text/plain")).await;
    assert_eq!((reply.status, reply.code().as_str()), (415, "content_type"));
    let gzip = put("{}").replacen("\r\n", "\r\ncontent-encoding: gzip\r\n", 1);
    assert_eq!(client.ask(gzip).await.code(), "content_encoding");

    // A body may be left out where the handler says so.
    let bare = "POST /v1/things:start HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(client.ask(bare).await.json()["text"], "anonymous");
}

#[tokio::test]
async fn a_page_of_another_site_cannot_make_a_browser_use_a_server_without_keys() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    let evil = post("/v1/worker/claim", "").replacen("\r\n", "\r\norigin: http://evil.example\r\n", 1);
    let reply = client.ask(evil).await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "cross_site"));
    let rebound = get("/v1/things/1").replace("localhost", "evil.example");
    assert_eq!(client.ask(rebound).await.code(), "cross_site");
    // Neither reached a handler, and with keys both are a matter of keys only.
    assert!(sample.audit.entries.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_panic_is_answered_and_harms_nobody_else() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    for path in ["/v1/panic", "/v1/panic/audited"] {
        let reply = client.ask(get(path)).await;
        assert_eq!((reply.status, reply.code().as_str()), (500, "internal"));
        assert!(!String::from_utf8_lossy(&reply.body).contains("planted"));
    }
    assert_eq!(client.ask(get("/open")).await.body, b"open");
    assert_eq!(sample.door.counted().panics, 2);
}

#[tokio::test]
async fn uses_of_keys_are_counted_until_they_are_taken() {
    let (text, entry) = key(1, &[Scope::Read]);
    let id = entry.hash.id();
    let sample = Sample::new(vec![entry, key(2, &[Scope::Read]).1]);
    for _ in 0..3 {
        sample.door.answer(request(&Method::GET, "/v1/things/1", Some(text.reveal())), peer(true)).await;
    }
    let uses = sample.door.take_key_uses();
    assert_eq!((uses.len(), uses[&id].count), (1, 3));
    assert!(uses[&id].last_ms > 1_500_000_000_000);
    assert!(sample.door.take_key_uses().is_empty());
}

#[test]
#[should_panic(expected = "two routes for")]
fn two_routes_of_the_same_name_are_a_defect() {
    let twice = crate::sample::sample_routes(Default::default()).and(crate::sample::sample_routes(Default::default()));
    drop(twice);
}

/// Types and routes that would hide each other in the description.
mod alike {
    use http_server::{Access, Door, DoorOptions, Route, Routes};
    use utoipa_axum::routes;

    mod first {
        #[derive(serde::Serialize, utoipa::ToSchema)]
        pub(crate) struct Page {
            pub(crate) a: u32,
        }
    }

    mod second {
        #[derive(serde::Serialize, utoipa::ToSchema)]
        pub(crate) struct Page {
            pub(crate) b: String,
        }
    }

    #[utoipa::path(get, path = "/a/b", responses((status = 200, body = first::Page)))]
    async fn one() -> String {
        first::Page { a: 1 }.a.to_string()
    }

    #[utoipa::path(get, path = "/c", responses((status = 200, body = second::Page)))]
    async fn two() -> String {
        second::Page { b: String::new() }.b
    }

    #[utoipa::path(get, path = "/a:b", responses((status = 200)))]
    async fn three() {}

    #[test]
    #[should_panic(expected = "two types are called `Page`")]
    fn types() {
        let routes =
            Routes::new().with(Route::new(routes!(one), Access::Open)).with(Route::new(routes!(two), Access::Open));
        drop(Door::new(routes, DoorOptions::new("Sample", "1")));
    }

    #[test]
    #[should_panic(expected = "two routes have the id `get_a_b`")]
    fn ids() {
        let routes =
            Routes::new().with(Route::new(routes!(one), Access::Open)).with(Route::new(routes!(three), Access::Open));
        drop(Door::new(routes, DoorOptions::new("Sample", "1")));
    }
}
