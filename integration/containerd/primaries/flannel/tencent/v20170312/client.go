// Package v20170312 stands in for Tencent's client, so that flanneld builds where a module proxy lacks that module. flanneld
// calls it only with the backend `tencent-vpc`.
package v20170312

import "errors"

var errAbsent = errors.New("built without Tencent's client")

type (
	Client struct{}
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		DestinationCidrBlock, RouteType, GatewayType, GatewayId, RouteDescription *string
		RouteId                                                       *uint64
		Enabled                                                       *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
		Main         *bool
	}
	DescribeRouteTablesRequest  struct{ Filters []*Filter }
	DescribeRouteTablesResponse struct {
		Response *struct {
			TotalCount    *uint64
			RouteTableSet []*RouteTable
		}
	}
	DeleteRoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
	DeleteRoutesResponse struct{}
	CreateRoutesRequest  struct {
		RouteTableId *string
		Routes       []*Route
	}
	CreateRoutesResponse struct{}
)

func NewClientWithSecretId(string, string, string) (*Client, error)  { return &Client{}, errAbsent }
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest      { return &DescribeRouteTablesRequest{} }
func NewDeleteRoutesRequest() *DeleteRoutesRequest                    { return &DeleteRoutesRequest{} }
func NewCreateRoutesRequest() *CreateRoutesRequest                    { return &CreateRoutesRequest{} }
func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errAbsent
}
func (*Client) DeleteRoutes(*DeleteRoutesRequest) (*DeleteRoutesResponse, error) { return nil, errAbsent }
func (*Client) CreateRoutes(*CreateRoutesRequest) (*CreateRoutesResponse, error) { return nil, errAbsent }
