//! The list of routes.
//!
//! Owns: what a route is – method, path, access, audit, limit, handler and description in one place – and what is made
//! of the list: the router, the API's description, and the table that tests go by.
//! Never: knows what a route does.
//!
//! Method and path are taken from the description (`#[utoipa::path(…)]`) of the handler, so that the API's description
//! cannot say anything else than the router does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::Method;
use axum::routing::MethodRouter;
use serde_json::json;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{HttpMethod, Operation, PathItem};
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr, ResponseBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::access::Access;
use crate::problem::{PROBLEM_JSON, ProblemDocument};
use crate::scope::Scope;

/// Most bytes of a body, unless a route says otherwise.
pub const BODY_BYTES_DEFAULT: usize = 1024 * 1024;
/// The name of the way to show a key, in the API's description.
const BEARER: &str = "key";

/// What the door goes by for a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteInfo {
    /// The method.
    pub method: Method,
    /// The path with names for its parts, such as `/v1/runs/{id}`.
    pub path: Arc<str>,
    /// What a caller needs.
    pub access: Access,
    /// Whether each call leaves an entry in the audit log.
    pub audited: bool,
    /// Most bytes of a body.
    pub body_limit: usize,
}

/// One route. `S` is what its handler shares with others; [`Route::with_state`] gives it.
pub struct Route<S = ()> {
    info: RouteInfo,
    schemas: Vec<(String, RefOr<Schema>)>,
    operation: Operation,
    handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Route<S> {
    /// The route of one handler: `Route::new(routes!(handler), access)`, with `utoipa_axum::routes!`.
    ///
    /// # Panics
    ///
    /// If there are several handlers, or the handler has several methods: each route is one line of the list.
    pub fn new((schemas, paths, handler): UtoipaMethodRouter<S>, access: Access) -> Route<S> {
        let mut operations = paths.paths.into_iter().flat_map(|(path, item)| {
            operations(item).into_iter().map(move |(method, operation)| (method, path.clone(), operation))
        });
        let (Some((method, path, operation)), None) = (operations.next(), operations.next()) else {
            panic!("a route has one handler with one method");
        };
        let info = RouteInfo { method, path: path.into(), access, audited: false, body_limit: BODY_BYTES_DEFAULT };
        Route { info, schemas, operation, handler }
    }

    /// Each call leaves an entry in the audit log.
    #[must_use]
    pub fn audited(mut self) -> Route<S> {
        self.info.audited = true;
        self
    }

    /// Takes bodies of at most `bytes`.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Route<S> {
        self.info.body_limit = bytes;
        self
    }

    /// Gives the handler what it shares with others.
    pub fn with_state(self, state: S) -> Route {
        let Route { info, schemas, operation, handler } = self;
        Route { info, schemas, operation, handler: handler.with_state(state) }
    }
}

/// The operations of one path, by method.
fn operations(item: PathItem) -> Vec<(Method, Operation)> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
    let all = [
        (Method::GET, get),
        (Method::PUT, put),
        (Method::POST, post),
        (Method::DELETE, delete),
        (Method::OPTIONS, options),
        (Method::HEAD, head),
        (Method::PATCH, patch),
        (Method::TRACE, trace),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation?))).collect()
}

/// All routes of a server. The crates that have features add theirs.
#[derive(Default)]
pub struct Routes {
    list: Vec<Route>,
}

impl Routes {
    /// An empty list.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a route.
    ///
    /// # Panics
    ///
    /// If there is one with this method and path.
    #[must_use]
    pub fn with(mut self, route: Route) -> Routes {
        let RouteInfo { method, path, .. } = &route.info;
        let taken = self.list.iter().any(|other| other.info.method == method && other.info.path == *path);
        assert!(!taken, "two routes for {method} {path}");
        self.list.push(route);
        self
    }

    /// Adds all routes of another list.
    ///
    /// # Panics
    ///
    /// As [`Routes::with`].
    #[must_use]
    pub fn and(self, others: Routes) -> Routes {
        others.list.into_iter().fold(self, Routes::with)
    }

    /// The table, in the order of adding.
    pub fn infos(&self) -> impl Iterator<Item = &RouteInfo> {
        self.list.iter().map(|route| &route.info)
    }

    /// The API's description.
    ///
    /// # Panics
    ///
    /// If two types of the same name differ, or two routes have the same id: one of them would be missing in silence.
    pub(crate) fn description(&self, title: &str, version: &str) -> OpenApi {
        let problem = (ProblemDocument::name().into_owned(), ProblemDocument::schema());
        let mut schemas = BTreeMap::from([problem]);
        for (name, schema) in self.list.iter().flat_map(|route| &route.schemas) {
            let known = schemas.entry(name.clone()).or_insert_with(|| schema.clone());
            assert!(known == schema, "two types are called `{name}` in the description; give one `#[schema(as = …)]`");
        }
        let mut ids = BTreeSet::new();
        for RouteInfo { method, path, .. } in self.infos() {
            let id = operation_id(method, path);
            assert!(ids.insert(id.clone()), "two routes have the id `{id}` in the description");
        }
        let mut paths = PathsBuilder::new();
        for route in &self.list {
            let item = PathItem::new(described_method(&route.info.method), described(route));
            paths = paths.path(route.info.path.as_ref(), item);
        }
        let scheme = Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("tn_ID_SECRET");
        let components = ComponentsBuilder::new()
            .schemas_from_iter(schemas)
            .security_scheme(BEARER, SecurityScheme::Http(scheme.build()));
        OpenApiBuilder::new()
            .info(InfoBuilder::new().title(title).version(version))
            .paths(paths)
            .components(Some(components.build()))
            .build()
    }

    /// Handlers by path, each with its table entry and behind what `guard` makes of it.
    pub(crate) fn into_router(self, guard: impl Fn(RouteInfo, MethodRouter) -> MethodRouter) -> axum::Router {
        let mut by_path: BTreeMap<Arc<str>, MethodRouter> = BTreeMap::new();
        for Route { info, handler, .. } in self.list {
            let path = Arc::clone(&info.path);
            let guarded = guard(info, handler);
            let all = by_path.remove(&path).unwrap_or_else(MethodRouter::new);
            by_path.insert(path, all.merge(guarded));
        }
        by_path.into_iter().fold(axum::Router::new(), |router, (path, handlers)| router.route(&path, handlers))
    }
}

/// What programs made from the description call a route: `get_v1_runs_id` for `GET /v1/runs/{id}`. Names of handlers
/// would not do: several modules have a `list`.
fn operation_id(method: &Method, path: &str) -> String {
    let words = path.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.as_str().to_lowercase(), |id, word| id + "_" + word)
}

/// A route's operation, with what holds for all routes added.
fn described(route: &Route) -> Operation {
    let mut operation = route.operation.clone();
    operation.operation_id = Some(operation_id(&route.info.method, &route.info.path));
    let wanted: Vec<&str> = match route.info.access {
        Access::Open => Vec::new(),
        Access::Probe => vec![Scope::Read.word()],
        Access::Scopes(scopes) => scopes.iter().map(|scope| scope.word()).collect(),
    };
    if !wanted.is_empty() {
        let mut security = vec![SecurityRequirement::new::<_, [&str; 0], &str>(BEARER, [])];
        if route.info.access == Access::Probe {
            security.push(SecurityRequirement::default()); // or none, by configuration
        }
        operation.security = Some(security);
    }
    let extensions = Extensions::from_iter([
        ("x-scopes".to_owned(), json!(wanted)),
        ("x-audited".to_owned(), json!(route.info.audited)),
    ]);
    operation.extensions.get_or_insert_default().merge(extensions);
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name(ProblemDocument::name()))).build();
    let refused = ResponseBuilder::new().description("The call was refused").content(PROBLEM_JSON, problem).build();
    operation.responses.responses.entry("default".to_owned()).or_insert_with(|| refused.into());
    operation
}

fn described_method(method: &Method) -> HttpMethod {
    match *method {
        Method::PUT => HttpMethod::Put,
        Method::POST => HttpMethod::Post,
        Method::DELETE => HttpMethod::Delete,
        Method::OPTIONS => HttpMethod::Options,
        Method::HEAD => HttpMethod::Head,
        Method::PATCH => HttpMethod::Patch,
        Method::TRACE => HttpMethod::Trace,
        _ => HttpMethod::Get, // `operations` gives no others
    }
}
