"""The routes of the local API: the role that each needs, its parameters, its body and its results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from agent.api import handlers
from agent.api.handlers import ApiResponse, Call
from agent.api.shapes.claims import (
    CapacityShape,
    ClaimBodyShape,
    ClaimDomainBodyShape,
    ClaimShape,
    DefragShape,
    DomainBodyShape,
    DomainShape,
    ExplanationShape,
    ReleasedShape,
)
from agent.api.shapes.host import (
    AuditShape,
    ConfigurationShape,
    ExplainedShape,
    HealthShape,
    HistoryShape,
    LookShape,
    OverviewShape,
    PauseBodyShape,
    PauseShape,
    StatusShape,
)
from agent.api.shapes.instances import (
    ClaimedRunningShape,
    GateBodyShape,
    InstancesShape,
    MoveBodyShape,
    MoveShape,
    MovesShape,
    VerdictShape,
)
from agent.api.shapes.providers import (
    ClearBodyShape,
    CordonBodyShape,
    CordonShape,
    DevicesShape,
    PlanShape,
    PreviewShape,
    ReshapeBodyShape,
    ReshapedShape,
    TreeShape,
)
from agent.api.shapes.schema import Moment, NothingShape, Schema, Uuid
from agent.config.access import ApiRole
from agent.status import web

Flag = Literal["true", "false"]


class Parameter(NamedTuple):
    """A parameter of the query, or of the path."""

    name: str
    form: Any
    description: str
    required: bool = False
    place: str = "query"


class Result(NamedTuple):
    """An answer that is not an error: the type of its body. `location`: with the header Location."""

    description: str
    form: Any
    location: bool = False
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True, eq=False)
class ApiRoute:
    """`rule` is written as werkzeug writes it; `results` is {HTTP status: result}."""

    method: str
    rule: str
    role: ApiRole
    handle: Callable[[Call], ApiResponse]
    operation: str
    summary: str
    results: Mapping[int, Result]
    parameters: tuple[Parameter, ...] = ()
    body: Any = None

    @property
    def path(self) -> str:
        """The rule as OpenAPI writes it."""
        return self.rule.replace("<", "{").replace(">", "}")

    @property
    def query(self) -> frozenset[str]:
        """The names of the query's parameters."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")

    @property
    def has_body(self) -> bool:
        """Whether a request must have a body."""
        return self.body is not None


CONSUMER = Parameter("consumer", Uuid, "the uuid of the instance", required=True, place="path")
MIGRATION = Parameter("migration", Uuid, "the uuid of the migration", required=True, place="path")
INSTANCE = Parameter(
    "instance", Uuid, "the instance of the migration, where the source cannot tell two moves apart"
)
LIMIT = Annotated[int, Schema(minimum=1, maximum=10_000, default=100)]
DRY_RUN = Annotated[bool, Schema(default=False)]

AUDITED = {200: Result("the findings, each with its repair, and what was healed", AuditShape)}
END_RESULTS = {
    200: Result("done; the same request again is no error", MoveShape),
    202: Result("journaled; done when Placement answers, or when the guest is gone", MoveShape),
}
RELEASE_RESULTS = {
    200: Result("removed from Placement", ReleasedShape),
    202: Result("journaled; delivered when Placement answers again", ReleasedShape),
}

HEALTH_ROUTES = (
    ApiRoute(
        "GET",
        "/healthz",
        ApiRole.READER,
        handlers.show(web.healthz),
        "healthz",
        "Whether the agent answers",
        {200: Result("it answers; `state` says how it is", HealthShape)},
    ),
    ApiRoute(
        "GET",
        "/livez",
        ApiRole.READER,
        handlers.show(web.livez),
        "livez",
        "Whether the agent's loop runs",
        {
            200: Result("it runs", HealthShape),
            503: Result("it does not run: a restart would help; `failed` names the check", HealthShape),
        },
    ),
    ApiRoute(
        "GET",
        "/readyz",
        ApiRole.READER,
        handlers.show(web.readyz),
        "readyz",
        "Whether the agent would consider a claim",
        {
            200: Result("it would", HealthShape),
            503: Result("it would not; `failed` names the checks, and each has its reason", HealthShape),
        },
    ),
    ApiRoute(
        "GET",
        "/metrics",
        ApiRole.READER,
        handlers.show(web.metrics),
        "metrics",
        "The metrics, for Prometheus",
        {200: Result("Prometheus's text format, version 0.0.4", str, media_type="text/plain")},
    ),
)

STATUS_ROUTES = (
    ApiRoute(
        "GET",
        "/v1/overview",
        ApiRole.READER,
        handlers.overview,
        "overview",
        "The whole host, from the agent's memory: status, health, tree, instances, moves, findings",
        {200: Result("as of the last pass, and the agent's own claims since", OverviewShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/history",
        ApiRole.READER,
        handlers.history,
        "history",
        "What the agent did, the newest first",
        {200: Result("at most `limit` events", HistoryShape)},
        (
            Parameter(
                "consumer",
                str,
                "only events of this consumer: its uuid, a unique beginning of it, or its name; also of one "
                "that was released",
            ),
            Parameter("since", Moment, "only events at this moment or later"),
            Parameter("limit", LIMIT, "at most so many events, 100 without it"),
        ),
    ),
    ApiRoute(
        "GET",
        "/v1/explain",
        ApiRole.READER,
        handlers.explain,
        "explain",
        "Who owns a device, a unit or an allocation, and why, since when; 404 names similar words",
        {200: Result("everything with that name", ExplainedShape)},
        (
            Parameter(
                "what",
                str,
                "the uuid or name of a consumer or provider, a device, an exact unit, a receipt",
                required=True,
            ),
        ),
    ),
    ApiRoute(
        "GET",
        "/v1/status",
        ApiRole.READER,
        handlers.status,
        "status",
        "The state of the agent: the reasons, the driver, Placement, claims, the last pass",
        {200: Result("the state, and the reasons for it", StatusShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/tree",
        ApiRole.READER,
        handlers.tree,
        "tree",
        "The provider tree of this host, as Placement has it",
        {200: Result("the provider tree, with inventories and usages", TreeShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/instances",
        ApiRole.READER,
        handlers.instances,
        "instances",
        "Guests and claims side by side",
        {200: Result("by uuid; either the guest or the claim may be missing", InstancesShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/devices",
        ApiRole.READER,
        handlers.devices,
        "devices",
        "The devices for guests, who has each, and which are withheld",
        {200: Result("by provider and class; CPUs are left out", DevicesShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/plan",
        ApiRole.READER,
        handlers.plan,
        "plan",
        "What the next pass would change in Placement: operations, and lines for people",
        {200: Result("the operations, in their order", PlanShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/config",
        ApiRole.READER,
        handlers.config,
        "config",
        "The settings in force, each with its origin; secrets are masked",
        {200: Result("each option with its origin", ConfigurationShape)},
    ),
    ApiRoute(
        "GET",
        "/v1/openapi.json",
        ApiRole.READER,
        handlers.openapi,
        "openapi",
        "The OpenAPI document of this API",
        {200: Result("OpenAPI 3.1", dict[str, Any])},
    ),
)

REPAIR_ROUTES = (
    ApiRoute(
        "POST",
        "/v1/pause",
        ApiRole.ADMIN,
        handlers.pause,
        "pause",
        "Take no new claims and moves until the pause ends, also after a restart",
        {200: Result("the pause", PauseShape)},
        body=PauseBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/resume",
        ApiRole.ADMIN,
        handlers.resume,
        "resume",
        "End the pause; no error without one",
        {200: Result("claims are taken again", NothingShape)},
        body=NothingShape,
    ),
    ApiRoute(
        "POST",
        "/v1/devices/cordon",
        ApiRole.ADMIN,
        handlers.cordon,
        "cordonDevice",
        "Give the device to no guest; the guest that has it keeps it, also after a restart of the agent",
        {200: Result("the cordon", CordonShape)},
        body=CordonBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/devices/clear",
        ApiRole.ADMIN,
        handlers.clear_cordon,
        "clearDevice",
        "Give the device to guests again",
        {200: Result("the cordon has ended, and the symptoms are excused", NothingShape)},
        body=ClearBodyShape,
    ),
    ApiRoute(
        "GET",
        "/v1/reshape",
        ApiRole.READER,
        handlers.preview_reshape,
        "previewReshape",
        "What a reshape would do; nothing is written",
        {200: Result("the tree before and after, and each move", PreviewShape)},
        (Parameter("undo", str, "the receipt of a reshape: what undoing it would do"),),
    ),
    ApiRoute(
        "POST",
        "/v1/reshape",
        ApiRole.ADMIN,
        handlers.reshape,
        "reshape",
        "Do the reshape that is due, also one that was undone, or undo one; 409 if it is refused as a whole",
        {200: Result("the receipts; none if there was nothing to do", ReshapedShape)},
        body=ReshapeBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/look",
        ApiRole.CLAIMER,
        handlers.look,
        "look",
        "Run a pass and an audit now; the audit repairs nothing",
        {200: Result("the state of the agent, and what differs", LookShape)},
        body=NothingShape,
    ),
    ApiRoute(
        "GET",
        "/v1/audit",
        ApiRole.READER,
        handlers.audit,
        "audit",
        "What differs between the host, the claims and Placement; nothing is written",
        AUDITED,
    ),
    ApiRoute(
        "POST",
        "/v1/audit",
        ApiRole.ADMIN,
        handlers.heal,
        "healAudit",
        "The same findings; the agent repairs them if asked to",
        AUDITED,
        (Parameter("heal", Flag, "do every repair"), Parameter("dry_run", Flag, "only show them")),
    ),
)

CLAIM_ROUTES = (
    ApiRoute(
        "POST",
        "/v1/capacity",
        ApiRole.READER,
        handlers.capacity,
        "capacity",
        "How many guests that ask for this fit one after the other, and what is stranded by which guests",
        {200: Result("the capacity", CapacityShape)},
        body=ClaimBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/defrag",
        ApiRole.READER,
        handlers.defrag,
        "defrag",
        "The fewest moves of guests that make room for one that asks for this; nothing is moved",
        {200: Result("the moves", DefragShape)},
        body=ClaimBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/claims",
        ApiRole.CLAIMER,
        handlers.make_claim,
        "claim",
        "Claim resources, or only ask whether they would fit",
        {
            200: Result("with `dry_run=true`: whether the claim would fit, and why not", ExplanationShape),
            201: Result("claimed; the same claim again gets the same answer", ClaimShape, location=True),
        },
        (Parameter("dry_run", DRY_RUN, "explain whether the claim would fit, and change nothing"),),
        ClaimBodyShape,
    ),
    ApiRoute(
        "GET",
        "/v1/claims/<consumer>",
        ApiRole.READER,
        handlers.show_claim,
        "showClaim",
        "One claim",
        {200: Result("the claim", ClaimShape)},
        (CONSUMER,),
    ),
    ApiRoute(
        "DELETE",
        "/v1/claims/<consumer>",
        ApiRole.CLAIMER,
        handlers.release,
        "release",
        "Release a claim; 409 if its guest runs on this host",
        RELEASE_RESULTS,
        (CONSUMER, Parameter("force", Flag, "also release the claim of a guest that runs")),
    ),
    ApiRoute(
        "POST",
        "/v1/claims/<consumer>/domain",
        ApiRole.READER,
        handlers.write_domain,
        "writeDomain",
        "Complete a domain's XML with what the claim gave; nothing is changed on the host",
        {200: Result("the complete domain", DomainShape)},
        (CONSUMER,),
        body=DomainBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/domains",
        ApiRole.CLAIMER,
        handlers.claim_domain,
        "claimDomain",
        "Claim what a domain's XML asks for and complete it, or only ask whether that would fit",
        {
            200: Result("with `dry_run=true`: whether the claim would fit, and why not", ExplanationShape),
            201: Result("claimed; the same domain again gets the same answer", DomainShape, location=True),
        },
        (Parameter("dry_run", DRY_RUN, "explain whether the claim would fit, and change nothing"),),
        ClaimDomainBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/gate",
        ApiRole.CLAIMER,
        handlers.ask_gate,
        "askGate",
        "Answer libvirt's hook: whether a guest may start or come in; 4xx: it may not, and why",
        {200: Result("the guest may go on", VerdictShape)},
        body=GateBodyShape,
    ),
    ApiRoute(
        "POST",
        "/v1/gate/running",
        ApiRole.CLAIMER,
        handlers.claim_running,
        "claimRunning",
        "Claim for the guests that run without a claim, as if each started now",
        {200: Result("what was claimed, and what was not", ClaimedRunningShape)},
        body=NothingShape,
    ),
)

MOVE_ROUTES = (
    ApiRoute(
        "GET",
        "/v1/moves",
        ApiRole.READER,
        handlers.moves,
        "moves",
        "The moves that this host takes part in, and the allocations of each",
        {200: Result("those under way, and those that ended lately", MovesShape)},
        (Parameter("look", Flag, "read first what the agents of other hosts did"),),
    ),
    ApiRoute(
        "POST",
        "/v1/moves",
        ApiRole.CLAIMER,
        handlers.begin_move,
        "beginMove",
        "Begin a move to this host",
        {201: Result("begun; the same request again gets the same answer", MoveShape, location=True)},
        body=MoveBodyShape,
    ),
    ApiRoute(
        "GET",
        "/v1/moves/<migration>",
        ApiRole.READER,
        handlers.show_move,
        "showMove",
        "One move",
        {200: Result("the move", MoveShape)},
        (MIGRATION,),
    ),
    ApiRoute(
        "POST",
        "/v1/moves/<migration>/confirm",
        ApiRole.CLAIMER,
        handlers.confirm_move,
        "confirmMove",
        "The instance stays at the destination, and the source is free",
        END_RESULTS,
        (MIGRATION, INSTANCE),
    ),
    ApiRoute(
        "POST",
        "/v1/moves/<migration>/revert",
        ApiRole.CLAIMER,
        handlers.revert_move,
        "revertMove",
        "The instance has its old place again, and the destination is free",
        END_RESULTS,
        (MIGRATION, INSTANCE),
    ),
)

ROUTES = (*HEALTH_ROUTES, *STATUS_ROUTES, *REPAIR_ROUTES, *CLAIM_ROUTES, *MOVE_ROUTES)
